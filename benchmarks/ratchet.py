"""ratchet against the plain pass, and in a pass that gradient_scale shares: ``python -m benchmarks.ratchet [options]``.

Plain is one forward and backward pass of the same model over the same tokens, weights frozen, SDPA attention, torch's
cross-entropy. Rounds go through all modes in turn, in one process; medians are printed, wall and CPU seconds. On a
machine that others use, look at the ratio of CPU seconds with ``--threads 1``.

The floor is arithmetic that no order of work can save: for each measured query and head the mixed input x̃ and its
products with all inputs, 4 · d_model · keys floating-point operations, at the rate of a matrix product of the same
shape on this machine.
"""

import argparse
import sys
import time

import torch

from benchmarks import plain
from benchmarks.rounds import Work, in_turn
from services.contracts.probes.gradient_scale import GradientScaleParameters
from services.contracts.probes.ratchet import RatchetParameters
from workers.models import LoadedModel
from workers.probes import gradient_scale, passes, ratchet

TARGET_RATIO = 1.5


def works(loaded: LoadedModel, options: argparse.Namespace) -> dict[str, Work]:
    """What is timed."""
    (token_ids,) = plain.read_tokens(loaded, options)
    ids = plain.on_device(loaded, token_ids)
    scale = (gradient_scale.PROBE, plain.job_parameters(GradientScaleParameters, options))
    steps = (ratchet.PROBE, plain.job_parameters(RatchetParameters, options))

    def plain_pass(_: int) -> None:
        with plain.sdpa(loaded):
            plain.forward_and_backward(loaded, ids)

    def together(*tasks: tuple[passes.PassProbe, GradientScaleParameters | RatchetParameters]) -> Work:
        def work(_: int) -> None:
            for outcome in passes.measure_together(loaded, tasks, token_ids, 0):
                if isinstance(outcome, Exception):
                    raise outcome

        return work

    return {
        "plain": plain_pass,
        "gradient_scale": together(scale),
        "ratchet": together(steps),
        "both in one pass": together(scale, steps),
    }


def product_rate(d_model: int, rows: int, keys: int, device: str) -> float:
    """Floating-point operations a CPU second of the two products of a block of rows."""
    weights = torch.rand(rows, keys, device=device)
    x = torch.rand(keys, d_model, device=device)
    begin, done = time.process_time(), 0
    while time.process_time() - begin < 2:
        _ = (weights @ x) @ x.T
        done += 4 * rows * keys * d_model
    if device != "cpu":
        torch.cuda.synchronize()
    return done / (time.process_time() - begin)


def main() -> int:
    options = plain.parser(__doc__, rounds=4).parse_args()
    loaded = plain.load(options)
    times = in_turn(works(loaded, options), options.rounds, loaded.model.device)

    print(
        f"{options.model}, {options.sequences} × {options.length} tokens, queries step {options.step}, "
        f"{options.dtype}, {torch.get_num_threads()} threads, {options.rounds} rounds"
    )
    for mode, each in times.items():
        ratio = each.over(times["plain"])
        print(f"{mode:17} {each}   ratio {ratio.wall:6.3f} wall {ratio.cpu:6.3f} CPU")
    shape = loaded.architecture
    queries = plain.job_parameters(RatchetParameters, options).queries.positions(options.length)
    pairs = options.sequences * shape.layers * shape.heads * sum(query + 1 for query in queries)
    operations = 4 * shape.d_model * pairs
    rate = product_rate(shape.d_model, 512, options.length // 2, options.device)
    floor = operations / rate
    print(
        f"floor: {operations / 1e9:.0f} GFLOP at {rate / 1e9:.0f} GFLOP/s = {floor:.2f} s CPU, "
        f"{1 + floor / times['plain'].cpu:.3f} times the plain pass (aim: {TARGET_RATIO} of its time)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
