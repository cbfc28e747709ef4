"""entropy_bound against the plain forward pass, and against whole patterns: ``python -m benchmarks.entropy_bound``.

Three ways over the same tokens, each in a process of its own that loads the model once and waits its turn; rounds
alternate, medians are printed, with each process's peak memory:

- plain: one forward pass with SDPA attention and the logits of the last position only;
- probe: the whole of ``measure``;
- whole: what one would do otherwise, a pass with eager attention and ``output_attentions=True``, which holds L·H·T²
  weights at once, and from them entropy and the singular values of the measured rows (σ cannot be had from it).

The probe's arithmetic is printed too, in multiplications by those of the pass: scores of the measured rows, Gram
matrices of the ranked rows and of the inputs. Selection and eigenvalues come on top and count no multiplications to
speak of. On a machine that others use, look at the ratio of CPU seconds (``--threads 1`` makes them comparable).
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from benchmarks import plain
from benchmarks.rounds import Work, in_processes
from services.contracts.probes.entropy_bound import EntropyBoundParameters
from workers.models import LoadedModel
from workers.models.loaded import Architecture
from workers.probes import entropy_bound, passes

TARGET_RATIO = 2.0  # by the plain forward pass


def job_parameters(options: argparse.Namespace) -> EntropyBoundParameters:
    return plain.job_parameters(EntropyBoundParameters, options, rank_rows=options.rank_rows)


def ranked(parameters: EntropyBoundParameters) -> range:
    """The queries whose rows have their rank measured."""
    queries = parameters.queries.positions(parameters.length)
    return queries[:: -(-len(queries) // parameters.rank_rows)]


def whole_patterns(loaded: LoadedModel, ids: torch.Tensor, parameters: EntropyBoundParameters) -> list[torch.Tensor]:
    """Entropies and singular values from all patterns, as a script would take them."""
    queries = parameters.queries.positions(parameters.length)
    found = []
    for pattern in plain.patterns(loaded, ids):
        rows = pattern[:, :, list(queries)].float()
        found += [-torch.xlogy(rows, rows).sum(-1), rows.topk(8).values.sum(-1)]
        found.append(torch.linalg.svdvals(pattern[:, :, list(ranked(parameters))].float()))
    return found


@contextmanager
def prepared(mode: str, options: argparse.Namespace) -> Iterator[tuple[LoadedModel, Work]]:
    """In the process of the mode: the model and what is timed."""
    loaded = plain.load(options)
    batches = plain.read_tokens(loaded, options, options.rounds + 1)
    parameters = job_parameters(options)
    if mode == "probe":
        yield loaded, lambda round_: passes.measure(entropy_bound.PROBE, loaded, parameters, batches[round_], 0)
    elif mode == "plain":
        with plain.sdpa(loaded):
            yield loaded, lambda round_: plain.forward(loaded, plain.on_device(loaded, batches[round_]))
    else:
        loaded.model.set_attn_implementation("eager")
        yield loaded, lambda round_: whole_patterns(loaded, plain.on_device(loaded, batches[round_]), parameters)


def arithmetic(shape: Architecture, parameters: EntropyBoundParameters) -> dict[str, float]:
    """Multiplications of the probe's parts, by those of the pass."""
    length = parameters.length
    matrices = shape.parameters - shape.vocabulary_size * shape.d_model
    attention = shape.layers * shape.heads * shape.d_head * length * (length + 1)  # causal: scores and outputs
    whole = length * matrices + attention
    keys = sum(query + 1 for query in parameters.queries.positions(length))
    side = min(length, shape.d_model)
    parts = {
        "scores of the rows": shape.layers * shape.heads * shape.d_head * keys,
        "Gram matrices of ranked rows": shape.layers * shape.heads * len(ranked(parameters)) ** 2 * length,
        "Gram matrices of inputs": shape.layers * side**2 * max(length, shape.d_model),
    }
    return {name: part / whole for name, part in parts.items()}


def main() -> int:
    parser = plain.parser(__doc__)
    parser.add_argument("--rank-rows", type=int, default=128)
    options = parser.parse_args()
    times, peak_mib, shape = in_processes(prepared, ("plain", "probe", "whole"), options)

    print(
        f"{options.model}, {options.sequences} × {options.length} tokens, queries step {options.step}, "
        f"{options.rank_rows} ranked rows, {options.dtype}, {options.rounds} rounds"
    )
    for mode, each in times.items():
        ratio = each.over(times["plain"])
        print(f"{mode:6} {each} {peak_mib[mode]:8.0f} MiB peak   ratio {ratio.wall:.3f} wall {ratio.cpu:.3f} CPU")
    print(f"aim: the probe at {TARGET_RATIO} of the plain pass; its arithmetic, by that of the pass:")
    for name, part in arithmetic(shape, job_parameters(options)).items():
        print(f"  {name:30} {part:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
