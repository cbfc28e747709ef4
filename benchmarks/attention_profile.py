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
import inspect
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch

from services.contracts.probes.attention_profile import AttentionProfileParameters
from services.contracts.probes.common import QueryRange
from services.contracts.settings import settings
from workers.data import read_sequences
from workers.models import LoadedModel, load_model
from workers.probes import attention_profile, passes

TARGET_RATIO = 1.15
LATER = 10_000  # number of a sequence beyond those that come with random ones


def forward(loaded: LoadedModel, ids: torch.Tensor, **asked: bool) -> tuple[torch.Tensor, ...] | None:
    keep = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(loaded.model.forward).parameters else {}
    with torch.no_grad():
        output = loaded.model(ids, use_cache=False, **keep, **asked)
    return output.attentions if asked else None


def whole_patterns(loaded: LoadedModel, ids: torch.Tensor, queries: range) -> list[torch.Tensor]:
    """The statistics of the probe from patterns [layer][batch, head, query, key], as a script would take them."""
    patterns = forward(loaded, ids, output_attentions=True)
    assert patterns is not None
    index = torch.tensor(queries, device=ids.device)
    found = []
    for pattern in patterns:
        rows = pattern[:, :, index].float()
        top = rows.max(-1)
        near = (index[:, None] - torch.arange(8, device=ids.device)).expand(*rows.shape[:2], -1, -1)
        found += [-torch.xlogy(rows, rows).sum(-1), top.values, top.indices, rows[..., 0]]
        found.append(rows.gather(-1, near))
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
    queries = QueryRange(start=min(32, options.length - 1), step=options.step)
    parameters = AttentionProfileParameters(
        sequences=options.sequences,
        length=options.length,
        batch=options.sequences,
        queries=queries,
        dtype=options.dtype,
        repeated_sequences=options.sequences,
    )
    work: Callable[[torch.Tensor], object]
    if mode in ("probe", "first"):

        def work(ids: torch.Tensor) -> None:
            first = 0 if mode == "first" else LATER
            passes.measure(attention_profile.PROBE, loaded, parameters, ids.cpu().numpy(), first)
    elif mode == "plain":
        loaded.model.set_attn_implementation("sdpa")

        def work(ids: torch.Tensor) -> None:
            forward(loaded, ids)
    else:
        loaded.model.set_attn_implementation("eager")

        def work(ids: torch.Tensor) -> None:
            whole_patterns(loaded, ids, queries.positions(options.length))

    pipe.send(floor(loaded, options))
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


def floor(loaded: LoadedModel, options: argparse.Namespace) -> tuple[float, int]:
    """Multiplications of the probe's score rows by those of the pass, and bytes of all patterns of a batch."""
    shape, length = loaded.architecture, options.length
    embeddings = shape.vocabulary_size * shape.d_model
    per_layer = shape.heads * shape.d_head
    keys = sum(query + 1 for query in range(min(32, length - 1), length, options.step))
    probe = shape.layers * per_layer * keys
    plain = (shape.parameters - embeddings) * length + 2 * shape.layers * per_layer * length * (length + 1) // 2
    width = torch.finfo(loaded.model.dtype).bits // 8
    return probe / plain, options.sequences * shape.layers * shape.heads * length**2 * width


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
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    context = multiprocessing.get_context("spawn")
    pipes, processes, arithmetic = {}, [], (0.0, 0)
    for mode in ("plain", "probe", "first", "eager"):
        pipes[mode], theirs = context.Pipe()
        processes.append(context.Process(target=serve, args=(mode, options, theirs)))
        processes[-1].start()
        theirs.close()  # so that a child that dies ends the wait
        arithmetic = pipes[mode].recv()
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
        f"{options.dtype}, {options.rounds} rounds"
    )
    medians = {
        mode: [statistics.median(column) for column in zip(*rounds, strict=True)] for mode, rounds in seconds.items()
    }
    for mode, (wall, cpu) in medians.items():
        ratios = [value / plain for value, plain in zip((wall, cpu), medians["plain"], strict=True)]
        print(
            f"{mode:6} {wall:8.2f} s wall ({ratios[0]:5.3f}) {cpu:8.2f} s CPU ({ratios[1]:5.3f}) "
            f"{peaks[mode] / 2**20:8.0f} MiB peak"
        )
    print(f"aim for the probe: {TARGET_RATIO} of plain; floor by multiplications: {1 + arithmetic[0]:.3f}")
    print(f"all patterns of a pass, which eager holds: {arithmetic[1] / 2**20:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
