"""buried_keys against the plain pass, alone and in one pass with others: ``python -m benchmarks.buried_keys``.

Plain is one forward and backward pass of the same model over the same tokens, weights frozen, SDPA attention, torch's
cross-entropy. Each of the backward probes then runs as its job would, without the database; and all of them together
as ``passes.measure_together`` runs jobs that share a pass. All modes take turns in one process, in rounds over new
tokens; medians are printed.

The floor of what the probes can cost is printed too: per layer, head and measured query two products over the row, q·k
and δ·v, beside the model's own products of the pass.

On a machine that others use, look at the ratio of CPU seconds (``--threads 1`` makes them comparable).
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.gradient_scale import plain_pass
from services.contracts.kinds import KINDS
from services.contracts.probes.common import ProbeParameters
from services.contracts.settings import settings
from workers.attention.seam import IMPLEMENTATION
from workers.data import read_sequences
from workers.models import LoadedModel, load_model
from workers.probes import PROBES, passes
from workers.probes.passes import PassProbe

BESIDE = ("gradient_scale", "ratchet")  # other kinds that watch the backward pass, as far as there are such


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct")
    parser.add_argument("--dataset", default="builtin:python-docs")
    parser.add_argument("--sequences", type=int, default=1, help="sequences in one pass")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--step", type=int, help="distance between measured queries; none leaves each kind's own")
    parser.add_argument("--credit", choices=["sequence", "own_token"], default="sequence")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0 leaves its choice")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)

    loaded = load_model(options.model, device=options.device, dtype=options.dtype, settings=settings())
    token_set = read_sequences(
        options.dataset,
        tokenizer=loaded.tokenizer,
        vocabulary_size=loaded.architecture.vocabulary_size,
        sequences=options.sequences * (options.rounds + 1),
        length=options.length,
        settings=settings(),
    )
    tasks = {name: _task(name, options) for name in ("buried_keys", *(name for name in BESIDE if name in KINDS))}
    modes: dict[str, Callable[[np.ndarray], None]] = {"plain": lambda ids: _plain(loaded, ids)}
    modes |= {name: _together(loaded, [task]) for name, task in tasks.items()}
    modes["together"] = _together(loaded, list(tasks.values()))

    seconds: dict[str, list[tuple[float, float]]] = {mode: [] for mode in modes}
    for round_ in range(options.rounds + 1):
        ids = token_set.token_ids[round_ * options.sequences : (round_ + 1) * options.sequences]
        for mode in list(modes)[:: 1 if round_ % 2 else -1]:
            wall, cpu = time.perf_counter(), time.process_time()
            modes[mode](ids)
            if round_:  # the first round warms up
                seconds[mode].append((time.perf_counter() - wall, time.process_time() - cpu))

    print(f"{options.model}, {options.sequences} × {options.length} tokens, {options.dtype}, credit {options.credit}")
    print(f"{options.rounds} rounds, rows left in memory; queries step " + _steps(tasks))
    medians = {
        mode: [statistics.median(column) for column in zip(*rounds, strict=True)] for mode, rounds in seconds.items()
    }
    for mode, (wall, cpu) in medians.items():
        ratios = (wall / medians["plain"][0], cpu / medians["plain"][1])
        print(f"{mode:15} {wall:8.2f} s wall {cpu:8.2f} s CPU   {ratios[0]:6.3f} {ratios[1]:6.3f} of plain")
    apart = [sum(medians[name][column] for name in tasks) for column in range(2)]
    shared = [together / alone for together, alone in zip(medians["together"], apart, strict=True)]
    print(f"together        {shared[0]:8.3f} wall {shared[1]:8.3f} CPU of the probes one after the other")
    print(f"floor of buried_keys: {_floor(loaded, tasks['buried_keys'][1]):.3f} of the plain pass's products")
    return 0


def _task(name: str, options: argparse.Namespace) -> tuple[PassProbe, ProbeParameters]:
    probe = PROBES[name]
    assert isinstance(probe, PassProbe)
    given = {name: getattr(options, name) for name in ("sequences", "length", "dtype", "credit")}
    queries = {"start": min(32, options.length - 1)} | ({"step": options.step} if options.step else {})
    parameters = KINDS[name].parameters.model_validate(given | {"batch": options.sequences, "queries": queries})
    return probe, parameters


def _steps(tasks: dict[str, tuple[PassProbe, ProbeParameters]]) -> str:
    return ", ".join(f"{parameters.queries.step} ({name})" for name, (_, parameters) in tasks.items())


def _plain(loaded: LoadedModel, ids: np.ndarray) -> None:
    loaded.model.set_attn_implementation("sdpa")
    try:
        plain_pass(loaded, torch.as_tensor(ids, dtype=torch.int64, device=loaded.model.device))
    finally:
        loaded.model.set_attn_implementation(IMPLEMENTATION)


def _together(loaded: LoadedModel, tasks: list[tuple[PassProbe, ProbeParameters]]) -> Callable[[np.ndarray], None]:
    def work(ids: np.ndarray) -> None:
        for outcome in passes.measure_together(loaded, tasks, ids, 0):
            if isinstance(outcome, Exception):
                raise outcome
        if loaded.model.device.type == "cuda":
            torch.cuda.synchronize()

    return work


def _floor(loaded: LoadedModel, parameters: ProbeParameters) -> float:
    """Multiplications of q·k and δ·v for the measured rows over those of a forward and a frozen backward pass.

    The pass: two for each weight and token (the embedding only as the output's matrix), and q·k and a·v over half
    of T×T rows forward, twice that backward.
    """
    shape, length = loaded.architecture, parameters.length
    heads = shape.layers * shape.heads
    rows = sum(query + 1 for query in parameters.queries.positions(length)) * heads * 2 * shape.d_head
    model = 2 * shape.parameters * length + 3 * heads * 2 * shape.d_head * length * (length + 1) / 2
    return rows / model


if __name__ == "__main__":
    sys.exit(main())
