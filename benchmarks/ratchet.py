"""ratchet against the plain pass, and in a pass that gradient_scale shares: ``python -m benchmarks.ratchet [options]``.

Plain is one forward and backward pass of the same model over the same tokens, weights frozen, SDPA attention, torch's
cross-entropy. Rounds go through all modes in turn, in one process; medians are printed, wall and CPU seconds. On a
machine that others use, look at the ratio of CPU seconds with ``--threads 1``.

The floor is arithmetic that no order of work can save: for each measured query and head the mixed input x̃ and its
products with all inputs, 4 · d_model · keys floating-point operations, at the rate of a matrix product of the same
shape on this machine.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch

from benchmarks.gradient_scale import plain_pass
from services.contracts.probes.common import QueryRange
from services.contracts.probes.gradient_scale import GradientScaleParameters
from services.contracts.probes.ratchet import RatchetParameters
from services.contracts.settings import settings
from workers.attention import seam
from workers.data import read_sequences
from workers.models import LoadedModel, load_model
from workers.probes import gradient_scale, passes, ratchet

TARGET_RATIO = 1.5


def modes(loaded: LoadedModel, options: argparse.Namespace) -> dict[str, Callable[[torch.Tensor], object]]:
    """What is timed, each a function of the token ids [sequence, position]."""
    fields = {
        "sequences": options.sequences,
        "length": options.length,
        "batch": options.sequences,
        "queries": QueryRange(start=min(32, options.length - 2), step=options.step),
        "dtype": options.dtype,
    }
    scale = (gradient_scale.PROBE, GradientScaleParameters(**fields))
    steps = (ratchet.PROBE, RatchetParameters(**fields))

    def plain(ids: torch.Tensor) -> None:
        loaded.model.set_attn_implementation("sdpa")
        plain_pass(loaded, ids)

    def together(*tasks: tuple[passes.PassProbe, GradientScaleParameters | RatchetParameters]):
        def work(ids: torch.Tensor) -> None:
            seam.attach(loaded.model)
            for outcome in passes.measure_together(loaded, tasks, ids.cpu().numpy(), 0):
                if isinstance(outcome, Exception):
                    raise outcome

        return work

    return {
        "plain": plain,
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct")
    parser.add_argument("--dataset", default="builtin:python-docs")
    parser.add_argument("--sequences", type=int, default=1, help="sequences in one pass")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--step", type=int, default=4, help="distance between measured queries")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0 leaves its choice")
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)

    loaded = load_model(options.model, device=options.device, dtype=options.dtype, settings=settings())
    architecture = loaded.architecture
    token_set = read_sequences(
        options.dataset,
        tokenizer=loaded.tokenizer,
        vocabulary_size=architecture.vocabulary_size,
        sequences=options.sequences,
        length=options.length,
        settings=settings(),
    )
    ids = torch.as_tensor(token_set.token_ids, dtype=torch.int64, device=loaded.model.device)
    timed: dict[str, list[tuple[float, float]]] = {}
    for round_ in range(options.rounds + 1):
        for name, work in modes(loaded, options).items():
            wall, cpu = time.perf_counter(), time.process_time()
            work(ids)
            if round_:  # the first one warms up
                timed.setdefault(name, []).append((time.perf_counter() - wall, time.process_time() - cpu))

    print(
        f"{options.model}, {options.sequences} × {options.length} tokens, queries step {options.step}, "
        f"{options.dtype}, {torch.get_num_threads()} threads, {options.rounds} rounds"
    )
    medians = {
        name: [statistics.median(column) for column in zip(*rounds, strict=True)] for name, rounds in timed.items()
    }
    for name, (wall, cpu) in medians.items():
        ratios = [mine / plain for mine, plain in zip((wall, cpu), medians["plain"], strict=True)]
        print(f"{name:17} {wall:8.2f} s wall {cpu:8.2f} s CPU   ratio {ratios[0]:6.3f} wall {ratios[1]:6.3f} CPU")
    queries = QueryRange(start=min(32, options.length - 2), step=options.step).positions(options.length)
    pairs = options.sequences * architecture.layers * architecture.heads * sum(query + 1 for query in queries)
    operations = 4 * architecture.d_model * pairs
    rate = product_rate(architecture.d_model, 512, options.length // 2, options.device)
    floor = operations / rate
    print(
        f"floor: {operations / 1e9:.0f} GFLOP at {rate / 1e9:.0f} GFLOP/s = {floor:.2f} s CPU, "
        f"{1 + floor / medians['plain'][1]:.3f} times the plain pass (aim: {TARGET_RATIO} of its time)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
