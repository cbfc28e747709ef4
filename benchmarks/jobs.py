"""(c) What a submission and a job cost, against one committed INSERT and against a script that does the same work.

    keyhole up --detach
    python -m benchmarks.jobs [--submissions 100] [--jobs 8]

The script of the comparison loads the same model, measures the same sequence and saves the rows as .npz, one process a
job, as people do without a service. Both are timed in turn, so that a slow machine is slow for both.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from db.connection import connect
from services.client import Keyhole
from services.contracts.settings import settings
from services.local import stack_file

MODEL, DATASET = "builtin:smollm2-135m-instruct", "builtin:python-docs"
PARAMETERS: dict[str, Any] = {"sequences": 1, "length": 128}

SCRIPT = """
import sys
import numpy as np
from services.contracts.probes.gradient_scale import GradientScaleParameters
from services.contracts.settings import settings
from workers.data import read_sequences
from workers.models import load_model
from workers.probes import gradient_scale, passes

model, dataset, sequences, length, output = sys.argv[1:]
parameters = GradientScaleParameters(sequences=int(sequences), length=int(length))
loaded = load_model(model, device="cpu", dtype="float32", settings=settings())
tokens = read_sequences(dataset, tokenizer=loaded.tokenizer, vocabulary_size=loaded.architecture.vocabulary_size,
                        sequences=parameters.sequences, length=parameters.length, settings=settings())
measurement = passes.measure(gradient_scale.PROBE, loaded, parameters, tokens.token_ids, 0)
np.savez(output, **measurement.rows["gradient_scale"])
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--submissions", type=int, default=100)
    arguments.add_argument("--jobs", type=int, default=8)
    options = arguments.parse_args()
    stack = stack_file.read(settings().home)
    if stack is None:
        sys.exit("No stack runs here. Start it with: keyhole up --detach")
    keyhole = Keyhole()
    submission_latency(keyhole, stack.database_url, options.submissions)
    jobs_per_minute(keyhole, options.jobs)


def submission_latency(keyhole: Keyhole, database_url: str, repetitions: int) -> None:
    """Time of POST /v1/jobs for a new job, and of one committed INSERT of a row of the same size."""
    submit_s, insert_s = [], []
    with connect(database_url) as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS keyhole.benchmark_row (body text)")
        for index in range(repetitions):
            started = time.perf_counter()
            job = keyhole.submit(
                "gradient_scale", model=MODEL, dataset=DATASET, force=True, priority=-100, **PARAMETERS
            )
            submit_s.append(time.perf_counter() - started)
            job.cancel()
            started = time.perf_counter()
            conn.execute("INSERT INTO keyhole.benchmark_row VALUES (%s)", (f"{index}" * 500,))
            insert_s.append(time.perf_counter() - started)
        conn.execute("DROP TABLE keyhole.benchmark_row")
    submit, insert = statistics.median(submit_s), statistics.median(insert_s)
    slowest = statistics.quantiles(submit_s, n=20)[-1]
    print(f"submit        median {submit * 1e3:7.1f} ms   95 % below {slowest * 1e3:.1f} ms")
    print(f"one INSERT    median {insert * 1e3:7.1f} ms")
    print(f"ratio submit / INSERT: {submit / insert:.1f}")


def jobs_per_minute(keyhole: Keyhole, repetitions: int) -> None:
    """Small jobs one after the other, each against one run of the script."""
    service_s, script_s = [], []
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "rows.npz"
        command = [sys.executable, "-c", SCRIPT, MODEL, DATASET, *map(str, PARAMETERS.values()), str(output)]
        for _ in range(repetitions):
            started = time.perf_counter()
            keyhole.submit("gradient_scale", model=MODEL, dataset=DATASET, force=True, **PARAMETERS).wait(
                progress=False
            )
            service_s.append(time.perf_counter() - started)
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            script_s.append(time.perf_counter() - started)
    service, script = statistics.median(service_s), statistics.median(script_s)
    print(f"job           median {service:7.2f} s    {60 / service:.1f} jobs a minute")
    print(f"script        median {script:7.2f} s    {60 / script:.1f} runs a minute")
    print(f"ratio job / script: {service / script:.2f}")


if __name__ == "__main__":
    main()
