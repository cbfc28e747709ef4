"""attention_profile against the plain forward pass and whole patterns: ``python -m benchmarks.attention_profile``.

Four ways over the same tokens, each in a process of its own that loads the model once and waits its turn; rounds
alternate, medians are printed, with each process's peak memory:

- plain: one forward pass with SDPA attention and the logits of the last position only;
- probe: the whole of ``measure``, for sequences of a job beyond its first ones;
- first: the same for the first ones, each with a pass over repeated random tokens of its own (8 of a job's 16 sequences
  by default, all others are like "probe");
- eager: what one would do otherwise, a pass with eager attention and ``output_attentions=True``, which holds
  L·H·T² weights at once, and the same statistics from them.

The floor of the probe's arithmetic is printed too: products of the measured queries with the keys they see, by those of
the pass. On a machine that others use, look at the ratio of CPU seconds (``--threads 1`` makes them comparable).
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from benchmarks import plain
from benchmarks.rounds import Work, in_processes
from services.contracts.probes.attention_profile import AttentionProfileParameters
from workers.models import LoadedModel
from workers.models.loaded import Architecture
from workers.probes import attention_profile, passes

TARGET_RATIO = 1.15
LATER = 10_000  # number of a sequence beyond those that come with random ones


def whole_patterns(loaded: LoadedModel, ids: torch.Tensor, queries: range) -> list[torch.Tensor]:
    """The statistics of the probe from all patterns, as a script would take them."""
    index = torch.tensor(queries, device=ids.device)
    found = []
    for pattern in plain.patterns(loaded, ids):
        rows = pattern[:, :, index].float()
        top = rows.max(-1)
        near = (index[:, None] - torch.arange(8, device=ids.device)).expand(*rows.shape[:2], -1, -1)
        found += [-torch.xlogy(rows, rows).sum(-1), top.values, top.indices, rows[..., 0]]
        found.append(rows.gather(-1, near))
    return found


def job_parameters(options: argparse.Namespace) -> AttentionProfileParameters:
    return plain.job_parameters(AttentionProfileParameters, options, repeated_sequences=options.sequences)


@contextmanager
def prepared(mode: str, options: argparse.Namespace) -> Iterator[tuple[LoadedModel, Work]]:
    """In the process of the mode: the model and what is timed."""
    loaded = plain.load(options)
    batches = plain.read_tokens(loaded, options, options.rounds + 1)
    parameters = job_parameters(options)
    queries = parameters.queries.positions(options.length)

    def probe(round_: int) -> None:
        first = 0 if mode == "first" else LATER
        passes.measure(attention_profile.PROBE, loaded, parameters, batches[round_], first)

    if mode in ("probe", "first"):
        yield loaded, probe
    elif mode == "plain":
        with plain.sdpa(loaded):
            yield loaded, lambda round_: plain.forward(loaded, plain.on_device(loaded, batches[round_]))
    else:
        loaded.model.set_attn_implementation("eager")
        yield loaded, lambda round_: whole_patterns(loaded, plain.on_device(loaded, batches[round_]), queries)


def floor(shape: Architecture, options: argparse.Namespace) -> float:
    """Multiplications of the probe's score rows by those of the pass."""
    length, per_layer = options.length, shape.heads * shape.d_head
    embeddings = shape.vocabulary_size * shape.d_model
    keys = sum(query + 1 for query in job_parameters(options).queries.positions(length))
    probe = shape.layers * per_layer * keys
    whole = (shape.parameters - embeddings) * length + 2 * shape.layers * per_layer * length * (length + 1) // 2
    return probe / whole


def pattern_mib(shape: Architecture, options: argparse.Namespace) -> float:
    """All patterns of a pass."""
    width = getattr(torch, options.dtype).itemsize
    return options.sequences * shape.layers * shape.heads * options.length**2 * width / 2**20


def main() -> int:
    options = plain.parser(__doc__).parse_args()
    times, peak_mib, shape = in_processes(prepared, ("plain", "probe", "first", "eager"), options)

    print(
        f"{options.model}, {options.sequences} × {options.length} tokens, queries step {options.step}, "
        f"{options.dtype}, {options.rounds} rounds"
    )
    for mode, each in times.items():
        ratio = each.over(times["plain"])
        print(
            f"{mode:6} {each.wall:8.2f} s wall ({ratio.wall:5.3f}) {each.cpu:8.2f} s CPU ({ratio.cpu:5.3f}) "
            f"{peak_mib[mode]:8.0f} MiB peak"
        )
    print(f"aim for the probe: {TARGET_RATIO} of plain; floor by multiplications: {1 + floor(shape, options):.3f}")
    print(f"all patterns of a pass, which eager holds: {pattern_mib(shape, options):.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
