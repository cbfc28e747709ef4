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
import inspect
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch

from services.contracts.probes.common import QueryRange
from services.contracts.probes.entropy_bound import EntropyBoundParameters
from services.contracts.settings import settings
from workers.data import read_sequences
from workers.models import LoadedModel, load_model
from workers.probes import entropy_bound, passes

TARGET_RATIO = 2.0  # by the plain forward pass


def forward(loaded: LoadedModel, ids: torch.Tensor, **asked: bool) -> tuple[torch.Tensor, ...] | None:
    keep = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(loaded.model.forward).parameters else {}
    with torch.no_grad():
        output = loaded.model(ids, use_cache=False, **keep, **asked)
    return output.attentions if asked else None


def whole_patterns(loaded: LoadedModel, ids: torch.Tensor, queries: range, rank_rows: int) -> list[torch.Tensor]:
    """Entropies and singular values from patterns [layer][batch, head, query, key], as a script would take them."""
    patterns = forward(loaded, ids, output_attentions=True)
    assert patterns is not None
    ranked = queries[:: -(-len(queries) // rank_rows)]
    found = []
    for pattern in patterns:
        rows = pattern[:, :, list(queries)].float()
        found += [-torch.xlogy(rows, rows).sum(-1), rows.topk(8).values.sum(-1)]
        found.append(torch.linalg.svdvals(pattern[:, :, list(ranked)].float()))
    return found


def serve(mode: str, options: argparse.Namespace, pipe: Connection) -> None:
    """Child process: load, then do one batch of sequences whenever asked, and answer with wall and CPU seconds."""
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
    parameters = EntropyBoundParameters(
        sequences=options.sequences,
        length=options.length,
        batch=options.sequences,
        queries=QueryRange(start=min(32, options.length - 1), step=options.step),
        dtype=options.dtype,
        rank_rows=options.rank_rows,
    )
    queries = parameters.queries.positions(options.length)
    work: Callable[[torch.Tensor], object]
    if mode == "probe":

        def work(ids: torch.Tensor) -> None:
            passes.measure(entropy_bound.PROBE, loaded, parameters, ids.cpu().numpy(), 0)
    elif mode == "plain":
        loaded.model.set_attn_implementation("sdpa")

        def work(ids: torch.Tensor) -> None:
            forward(loaded, ids)
    else:
        loaded.model.set_attn_implementation("eager")

        def work(ids: torch.Tensor) -> None:
            whole_patterns(loaded, ids, queries, options.rank_rows)

    pipe.send(arithmetic(loaded, queries, options))
    on_gpu = loaded.model.device.type == "cuda"
    while (round_ := pipe.recv()) is not None:
        part = token_set.token_ids[round_ * options.sequences : (round_ + 1) * options.sequences]
        ids = torch.as_tensor(part, dtype=torch.int64, device=loaded.model.device)
        wall, cpu = time.perf_counter(), time.process_time()
        work(ids)
        if on_gpu:
            torch.cuda.synchronize()
        pipe.send((time.perf_counter() - wall, time.process_time() - cpu))
    # kilobytes on Linux, bytes on macOS
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    pipe.send(torch.cuda.max_memory_allocated() if on_gpu else peak)


def arithmetic(loaded: LoadedModel, queries: range, options: argparse.Namespace) -> dict[str, float]:
    """Multiplications of the probe's parts, by those of the pass."""
    shape, length = loaded.architecture, options.length
    matrices = shape.parameters - shape.vocabulary_size * shape.d_model
    attention = shape.layers * shape.heads * shape.d_head * length * (length + 1)  # causal: scores and outputs
    whole = length * matrices + attention
    ranked = len(queries[:: -(-len(queries) // options.rank_rows)])
    side = min(length, shape.d_model)
    parts = {
        "scores of the rows": shape.layers * shape.heads * shape.d_head * sum(query + 1 for query in queries),
        "Gram matrices of ranked rows": shape.layers * shape.heads * ranked**2 * length,
        "Gram matrices of inputs": shape.layers * side**2 * max(length, shape.d_model),
    }
    return {name: part / whole for name, part in parts.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct")
    parser.add_argument("--dataset", default="builtin:python-docs")
    parser.add_argument("--sequences", type=int, default=1, help="sequences in one pass")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--step", type=int, default=4, help="distance between measured queries")
    parser.add_argument("--rank-rows", type=int, default=128)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0 leaves its choice")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    context = multiprocessing.get_context("spawn")
    pipes, processes, parts = {}, [], {}
    for mode in ("plain", "probe", "whole"):
        pipes[mode], theirs = context.Pipe()
        processes.append(context.Process(target=serve, args=(mode, options, theirs)))
        processes[-1].start()
        theirs.close()  # so that a child that dies ends the wait
        parts = pipes[mode].recv()
    seconds: dict[str, list[tuple[float, float]]] = {mode: [] for mode in pipes}
    for round_ in range(options.rounds + 1):
        for mode in list(pipes)[:: 1 if round_ % 2 else -1]:
            pipes[mode].send(round_)
            figures = pipes[mode].recv()
            if round_:  # the first round warms up
                seconds[mode].append(figures)
    peaks = {}
    for mode, pipe in pipes.items():
        pipe.send(None)
        peaks[mode] = pipe.recv()
    for process in processes:
        process.join()

    print(
        f"{options.model}, {options.sequences} × {options.length} tokens, queries step {options.step}, "
        f"{options.rank_rows} ranked rows, {options.dtype}, {options.rounds} rounds"
    )
    medians = {
        mode: [statistics.median(column) for column in zip(*rounds, strict=True)] for mode, rounds in seconds.items()
    }
    for mode, (wall, cpu) in medians.items():
        ratios = [one / plain for one, plain in zip(medians[mode], medians["plain"], strict=True)]
        print(
            f"{mode:6} {wall:8.2f} s wall {cpu:8.2f} s CPU {peaks[mode] / 2**20:8.0f} MiB peak   "
            f"ratio {ratios[0]:.3f} wall {ratios[1]:.3f} CPU"
        )
    print(f"aim: the probe at {TARGET_RATIO} of the plain pass; its arithmetic, by that of the pass:")
    for name, part in parts.items():
        print(f"  {name:30} {part:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
