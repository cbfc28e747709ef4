"""gradient_scale against the plain pass: ``python -m benchmarks.gradient_scale [options]``.

Plain is one forward and backward pass of the same model over the same tokens, weights frozen, SDPA attention, torch's
cross-entropy. The probe is the whole of ``measure`` and, unless ``--no-database``, the binary COPY of its rows and the
commit. Each runs in a process of its own that loads the model once and then waits its turn; rounds alternate, medians
are printed, with each process's peak memory. The model is loaded and checked as a job does it.

On a machine that others use, look at the ratio of CPU seconds (``--threads 1`` makes them comparable).
"""

import argparse
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection

import torch
import torch.nn.functional as F

from benchmarks.copy_rows import database_url, new_job
from db import copy
from db.connection import connect
from services.contracts.probes.common import QueryRange
from services.contracts.probes.gradient_scale import TABLE, GradientScaleParameters
from services.contracts.settings import settings
from workers.data import read_sequences
from workers.models import LoadedModel, load_model
from workers.probes import gradient_scale, passes

TARGET_RATIO = 1.15


def plain_pass(loaded: LoadedModel, batch: torch.Tensor) -> None:
    embeddings = loaded.model.get_input_embeddings()(batch).requires_grad_()
    logits = loaded.model(inputs_embeds=embeddings, use_cache=False).logits
    losses = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), batch[:, 1:].flatten())
    losses.backward()
    if batch.device.type == "cuda":
        torch.cuda.synchronize()


def serve(mode: str, options: argparse.Namespace, pipe: Connection) -> None:
    """Child process: load, then do one sequence-batch whenever asked, and answer with wall and CPU seconds."""
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
    parameters = GradientScaleParameters(
        sequences=options.sequences,
        length=options.length,
        batch=options.sequences,
        queries=QueryRange(start=min(32, options.length - 1), step=options.step),
        dtype=options.dtype,
        credit=options.credit,
    )
    with ExitStack() as stack:
        work: Callable[[int], object]
        if mode == "plain":
            loaded.model.set_attn_implementation("sdpa")

            def work(first: int) -> None:
                ids = token_set.token_ids[first : first + options.sequences]
                plain_pass(loaded, torch.as_tensor(ids, dtype=torch.int64, device=loaded.model.device))
        else:
            conn, job_id = None, 0
            if options.database:
                conn = stack.enter_context(connect(stack.enter_context(database_url())))
                job_id = new_job(conn)

            def work(first: int) -> None:
                ids = token_set.token_ids[first : first + options.sequences]
                measurement = passes.measure(gradient_scale.PROBE, loaded, parameters, ids, first)
                if conn is not None:
                    with conn.transaction():
                        copy.copy_rows(conn, TABLE, job_id, measurement.rows[TABLE.name])

        pipe.send("ready")
        while (round_ := pipe.recv()) is not None:
            wall, cpu = time.perf_counter(), time.process_time()
            work(round_ * options.sequences)
            pipe.send((time.perf_counter() - wall, time.process_time() - cpu))
        # kilobytes on Linux, bytes on macOS
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        if loaded.model.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated()
        pipe.send(peak)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct")
    parser.add_argument("--dataset", default="builtin:python-docs")
    parser.add_argument("--sequences", type=int, default=1, help="sequences in one pass")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--step", type=int, default=4, help="distance between measured queries")
    parser.add_argument("--credit", choices=["sequence", "own_token"], default="sequence")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0 leaves its choice")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-database", dest="database", action="store_false", help="leave the rows in memory")
    options = parser.parse_args()

    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for mode in ("plain", "probe"):
        pipes[mode], theirs = context.Pipe()
        processes.append(context.Process(target=serve, args=(mode, options, theirs)))
        processes[-1].start()
        theirs.close()  # so that a child that dies ends the wait
        pipes[mode].recv()
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

    what = "with the database" if options.database else "rows left in memory"
    print(
        f"{options.model}, {options.sequences} × {options.length} tokens, queries step {options.step}, {options.dtype}"
    )
    print(f"credit {options.credit}, {what}, {options.rounds} rounds")
    medians = {
        mode: [statistics.median(column) for column in zip(*rounds, strict=True)] for mode, rounds in seconds.items()
    }
    for mode, (wall, cpu) in medians.items():
        print(f"{mode:6} {wall:8.2f} s wall {cpu:8.2f} s CPU {peaks[mode] / 2**20:8.0f} MiB peak")
    wall, cpu = (probe / plain for probe, plain in zip(medians["probe"], medians["plain"], strict=True))
    memory = peaks["probe"] / peaks["plain"]
    print(f"ratio  {wall:8.3f}   wall {cpu:8.3f}   CPU {memory:8.3f} of peak (aim: {TARGET_RATIO} of the time)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
