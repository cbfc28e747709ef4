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
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from services.contracts.probes.calibration import CalibrationParameters
from services.contracts.probes.common import QueryRange
from services.contracts.settings import settings
from workers.attention import seam
from workers.data import read_sequences
from workers.models import LoadedModel, load_model
from workers.models.others import OtherModels
from workers.probes import calibration

TARGET_PASSES = 3.0  # forward and backward passes of the student, at most


def forward(loaded: LoadedModel, ids: Tensor) -> None:
    with torch.no_grad():
        loaded.model(ids, use_cache=False)


def forward_and_backward(loaded: LoadedModel, ids: Tensor) -> None:
    embeddings = loaded.model.get_input_embeddings()(ids).requires_grad_()
    logits = loaded.model(inputs_embeds=embeddings, use_cache=False).logits
    F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten()).backward()


def prefixes(student: LoadedModel, teacher_logits: Tensor, ids: Tensor, queries: list[int]) -> None:
    """Passes of their own for each query; gradients reach every layer's attention."""
    for query in queries:
        embeddings = student.model.get_input_embeddings()(ids[:, : query + 1]).requires_grad_()
        logits = student.model(inputs_embeds=embeddings, use_cache=False, logits_to_keep=1).logits[0, -1:].float()
        hard = F.cross_entropy(logits, ids[0, query + 1 : query + 2])
        soft = F.cross_entropy(logits, teacher_logits[0, query : query + 1].softmax(-1))
        torch.autograd.grad(hard, embeddings, retain_graph=True)
        torch.autograd.grad(soft, embeddings)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct-3bit")
    parser.add_argument("--teacher", default="builtin:smollm2-135m-instruct")
    parser.add_argument("--dataset", default="builtin:python-docs")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--step", type=int, default=4, help="distance between measured queries")
    parser.add_argument("--sweeps", type=int, default=1, help="sweeps of 13 points in the sequence")
    parser.add_argument("--prefixes", type=int, default=3, help="queries that the loop over prefixes takes")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0 leaves its choice")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)

    student, teacher = (
        load_model(source, device=options.device, dtype=options.dtype, settings=settings())
        for source in (options.model, options.teacher)
    )
    token_set = read_sequences(
        options.dataset,
        tokenizer=student.tokenizer,
        vocabulary_size=student.architecture.vocabulary_size,
        sequences=1,
        length=options.length,
        settings=settings(),
    )
    ids = torch.as_tensor(token_set.token_ids, dtype=torch.int64, device=student.model.device)
    queries = QueryRange(start=min(32, options.length - 2), step=options.step)
    measured = queries.positions(options.length)
    some = [measured[(2 * number + 1) * len(measured) // (2 * options.prefixes)] for number in range(options.prefixes)]

    def probe(sweeps: int) -> None:
        parameters = CalibrationParameters(
            sequences=2, length=options.length, queries=queries, dtype=options.dtype, sweeps_per_sequence=sweeps
        )
        others = OtherModels([lambda: teacher])
        calibration.measure(student, parameters, token_set.token_ids, 1, others)  # sequence 1: none of the checked

    with torch.no_grad():
        teacher_logits = teacher.model(ids, use_cache=False).logits.float()
    works: dict[str, Callable[[], None]] = {
        "forward": lambda: forward(student, ids),
        "forward and backward": lambda: forward_and_backward(student, ids),
        "teacher forward": lambda: forward(teacher, ids),
        "probe": lambda: probe(0),
        "probe, sweeps": lambda: probe(options.sweeps),
        f"{options.prefixes} prefixes": lambda: prefixes(student, teacher_logits, ids, some),
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for round_ in range(options.rounds + 1):
        for name in list(works)[:: 1 if round_ % 2 else -1]:
            implementation = seam.IMPLEMENTATION if name.startswith("probe") else "sdpa"
            for each in (student, teacher):
                each.model.set_attn_implementation(implementation)
            wall, cpu = time.perf_counter(), time.process_time()
            works[name]()
            if student.model.device.type == "cuda":
                torch.cuda.synchronize()
            if round_:  # the first round warms up
                seconds[name].append((time.perf_counter() - wall, time.process_time() - cpu))

    print(
        f"{options.model}, teacher {options.teacher}, {options.length} tokens, {len(measured)} queries, {options.dtype}"
    )
    medians = {
        name: [statistics.median(column) for column in zip(*rounds, strict=True)] for name, rounds in seconds.items()
    }
    for name, (wall, cpu) in medians.items():
        print(f"{name:22} {wall:8.2f} s wall {cpu:8.2f} s CPU")
    for what, column in (("wall", 0), ("CPU", 1)):
        one, both, teachers, alone, swept, loop = (medians[name][column] for name in works)
        floor = teachers + 2 * both - one
        print(
            f"{what}: probe {alone / both:.2f} forward and backward passes (aim: at most {TARGET_PASSES}), with sweeps "
            f"{swept / both:.2f}; {alone / floor:.2f} of the floor; the loop over prefixes would take "
            f"{loop / options.prefixes * len(measured) / alone:.0f} times as long"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
