"""gradient_scale against the plain pass: ``python -m benchmarks.gradient_scale [options]``.

Plain is one forward and backward pass of the same model over the same tokens, weights frozen, SDPA attention, torch's
cross-entropy. The probe is the whole of ``measure`` and, unless ``--no-database``, the binary COPY of its rows and the
commit. Each runs in a process of its own that loads the model once and then waits its turn; rounds alternate, medians
are printed, with each process's peak memory. The model is loaded and checked as a job does it.

On a machine that others use, look at the ratio of CPU seconds (``--threads 1`` makes them comparable).
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks import plain
from benchmarks.copy_rows import database_url, new_job
from benchmarks.rounds import Work, in_processes
from db import copy
from db.connection import connect
from services.contracts.probes.gradient_scale import TABLE, GradientScaleParameters
from workers.models import LoadedModel
from workers.probes import gradient_scale, passes

TARGET_RATIO = 1.15


@contextmanager
def prepared(mode: str, options: argparse.Namespace) -> Iterator[tuple[LoadedModel, Work]]:
    """In the process of the mode: the model and what is timed."""
    loaded = plain.load(options)
    batches = plain.read_tokens(loaded, options, options.rounds + 1)
    parameters = plain.job_parameters(GradientScaleParameters, options, credit=options.credit)

    def plain_pass(round_: int) -> None:
        plain.forward_and_backward(loaded, plain.on_device(loaded, batches[round_]))

    with ExitStack() as stack:
        if mode == "plain":
            stack.enter_context(plain.sdpa(loaded))
            yield loaded, plain_pass
            return
        conn, job_id = None, 0
        if options.database:
            conn = stack.enter_context(connect(stack.enter_context(database_url())))
            job_id = new_job(conn)

        def probe(round_: int) -> None:
            first = round_ * options.sequences
            measurement = passes.measure(gradient_scale.PROBE, loaded, parameters, batches[round_], first)
            if conn is not None:
                with conn.transaction():
                    copy.copy_rows(conn, TABLE, job_id, measurement.rows[TABLE.name])

        yield loaded, probe


def main() -> int:
    parser = plain.parser(__doc__)
    parser.add_argument("--credit", choices=["sequence", "own_token"], default="sequence")
    parser.add_argument("--no-database", dest="database", action="store_false", help="leave the rows in memory")
    options = parser.parse_args()
    times, peak_mib, _ = in_processes(prepared, ("plain", "probe"), options)

    what = "with the database" if options.database else "rows left in memory"
    print(
        f"{options.model}, {options.sequences} × {options.length} tokens, queries step {options.step}, {options.dtype}"
    )
    print(f"credit {options.credit}, {what}, {options.rounds} rounds")
    for mode, each in times.items():
        print(f"{mode:6} {each} {peak_mib[mode]:8.0f} MiB peak")
    ratio, memory = times["probe"].over(times["plain"]), peak_mib["probe"] / peak_mib["plain"]
    print(
        f"ratio  {ratio.wall:8.3f}   wall {ratio.cpu:8.3f}   CPU {memory:8.3f} of peak "
        f"(aim: {TARGET_RATIO} of the time)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
