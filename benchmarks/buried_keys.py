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
import sys

import numpy as np

from benchmarks import plain
from benchmarks.rounds import Times, Work, in_turn
from services.contracts.kinds import KINDS
from services.contracts.probes.common import ProbeParameters
from workers.models import LoadedModel
from workers.probes import PROBES, passes
from workers.probes.passes import PassProbe

BESIDE = ("gradient_scale", "ratchet")  # other kinds that watch the backward pass

Task = tuple[PassProbe, ProbeParameters]


def main() -> int:
    parser = plain.parser(__doc__, fixed={"step": None})
    parser.add_argument("--step", type=int, help="distance between measured queries; none leaves each kind's own")
    parser.add_argument("--credit", choices=["sequence", "own_token"], default="sequence")
    options = parser.parse_args()

    loaded = plain.load(options)
    batches = plain.read_tokens(loaded, options, options.rounds + 1)
    tasks = {name: _task(name, options) for name in ("buried_keys", *BESIDE)}

    def plain_pass(round_: int) -> None:
        with plain.sdpa(loaded):
            plain.forward_and_backward(loaded, plain.on_device(loaded, batches[round_]))

    works: dict[str, Work] = {"plain": plain_pass}
    works |= {name: _together(loaded, [task], batches) for name, task in tasks.items()}
    works["together"] = _together(loaded, list(tasks.values()), batches)
    times = in_turn(works, options.rounds, loaded.model.device)

    print(f"{options.model}, {options.sequences} × {options.length} tokens, {options.dtype}, credit {options.credit}")
    print(f"{options.rounds} rounds, rows left in memory; queries step " + _steps(tasks))
    for mode, each in times.items():
        ratio = each.over(times["plain"])
        print(f"{mode:15} {each}   {ratio.wall:6.3f} {ratio.cpu:6.3f} of plain")
    apart = Times(sum(times[name].wall for name in tasks), sum(times[name].cpu for name in tasks))
    shared = times["together"].over(apart)
    print(f"together        {shared.wall:8.3f} wall {shared.cpu:8.3f} CPU of the probes one after the other")
    print(f"floor of buried_keys: {_floor(loaded, tasks['buried_keys'][1]):.3f} of the plain pass's products")
    return 0


def _task(name: str, options: argparse.Namespace) -> Task:
    probe = PROBES[name]
    assert isinstance(probe, PassProbe)
    return probe, plain.job_parameters(KINDS[name].parameters, options, credit=options.credit)


def _steps(tasks: dict[str, Task]) -> str:
    return ", ".join(f"{parameters.queries.step} ({name})" for name, (_, parameters) in tasks.items())


def _together(loaded: LoadedModel, tasks: list[Task], batches: np.ndarray) -> Work:
    def work(round_: int) -> None:
        for outcome in passes.measure_together(loaded, tasks, batches[round_], 0):
            if isinstance(outcome, Exception):
                raise outcome

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
