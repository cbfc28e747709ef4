"""calibration against plain passes and a loop over prefixes: ``python -m benchmarks.calibration [options]``.

On one sequence, in rounds that take each in turn, medians printed:

- *forward* and *forward and backward*: plain passes of the student, weights frozen, SDPA attention, torch's
  cross-entropy; and *teacher forward*. The floor of the probe is their sum with one more backward pass: one
  forward pass of each model and a backward pass for each loss.
- *probe*: the whole of ``measure`` without sweeps, and *probe, sweeps* with those of ``--sweeps``.
- *prefixes*: for ``--prefixes`` of the queries, one forward pass over the prefix, and a backward pass for each loss of
  its last prediction: what r takes where each query has passes of its own, the row's gradient not counted. Its time is
  scaled to all queries.

On a machine that others use, look at the ratios of CPU seconds (``--threads 1`` makes them comparable).
"""

import argparse
import sys
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import plain
from benchmarks.rounds import Work, in_turn
from services.contracts.probes.calibration import CalibrationParameters
from workers.models import LoadedModel
from workers.models.others import OtherModels
from workers.probes import calibration

TARGET_PASSES = 3.0  # forward and backward passes of the student, at most


def every_logit(loaded: LoadedModel, ids: Tensor) -> Tensor:
    """A forward pass that leaves no logits out: both models' are needed at every query."""
    with torch.no_grad():
        return loaded.model(ids, use_cache=False).logits


def prefixes(student: LoadedModel, teacher_logits: Tensor, ids: Tensor, queries: Sequence[int]) -> None:
    """Passes of their own for each query; gradients reach every layer's attention."""
    for query in queries:
        embeddings = student.model.get_input_embeddings()(ids[:, : query + 1]).requires_grad_()
        logits = student.model(inputs_embeds=embeddings, use_cache=False, logits_to_keep=1).logits[0, -1:].float()
        hard = F.cross_entropy(logits, ids[0, query + 1 : query + 2])
        soft = F.cross_entropy(logits, teacher_logits[0, query : query + 1].softmax(-1))
        torch.autograd.grad(hard, embeddings, retain_graph=True)
        torch.autograd.grad(soft, embeddings)


def works(
    student: LoadedModel, teacher: LoadedModel, token_ids: np.ndarray, queries: range, options: argparse.Namespace
) -> dict[str, Work]:
    """What is timed."""
    ids = plain.on_device(student, token_ids)
    some = [queries[(2 * number + 1) * len(queries) // (2 * options.prefixes)] for number in range(options.prefixes)]
    with plain.sdpa(teacher):
        teacher_logits = every_logit(teacher, ids).float()

    def by_itself(pass_: Callable[[], object]) -> Work:
        def work(_: int) -> None:
            with plain.sdpa(student, teacher):
                pass_()

        return work

    def probe(sweeps: int) -> Work:
        parameters = plain.job_parameters(CalibrationParameters, options, sequences=2, sweeps_per_sequence=sweeps)
        others = OtherModels([lambda: teacher])
        return lambda _: calibration.measure(student, parameters, token_ids, 1, others)  # 1: none of the checked

    return {
        "forward": by_itself(lambda: every_logit(student, ids)),
        "forward and backward": by_itself(lambda: plain.forward_and_backward(student, ids)),
        "teacher forward": by_itself(lambda: every_logit(teacher, ids)),
        "probe": probe(0),
        "probe, sweeps": probe(options.sweeps),
        f"{options.prefixes} prefixes": by_itself(lambda: prefixes(student, teacher_logits, ids, some)),
    }


def main() -> int:
    parser = plain.parser(__doc__, fixed={"sequences": 1}, model="builtin:smollm2-135m-instruct-3bit", rounds=3)
    parser.add_argument("--teacher", default="builtin:smollm2-135m-instruct")
    parser.add_argument("--sweeps", type=int, default=1, help="sweeps of 13 points in the sequence")
    parser.add_argument("--prefixes", type=int, default=3, help="queries that the loop over prefixes takes")
    options = parser.parse_args()

    student, teacher = plain.load(options), plain.load(options, options.teacher)
    (token_ids,) = plain.read_tokens(student, options)
    queries = plain.job_parameters(CalibrationParameters, options).queries.positions(options.length)
    times = in_turn(works(student, teacher, token_ids, queries, options), options.rounds, student.model.device)

    print(
        f"{options.model}, teacher {options.teacher}, {options.length} tokens, {len(queries)} queries, {options.dtype}"
    )
    for name, each in times.items():
        print(f"{name:22} {each}")
    for what, figures in zip(("wall", "CPU"), zip(*times.values(), strict=True), strict=True):
        one, both, teachers, alone, swept, loop = figures
        floor = teachers + 2 * both - one
        print(
            f"{what}: probe {alone / both:.2f} forward and backward passes (aim: at most {TARGET_PASSES}), with sweeps "
            f"{swept / both:.2f}; {alone / floor:.2f} of the floor; the loop over prefixes would take "
            f"{loop / options.prefixes * len(queries) / alone:.0f} times as long"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
