"""`make demo`: gradient scale of the built-in model on the built-in text, through the API, as any user would ask.

python -m services.local.demo           needs a running stack (`keyhole up`)
"""

import sys
from typing import Any

from services.cli import output, waiting
from services.client import Job, Keyhole
from services.contracts.errors import KeyholeError
from services.contracts.settings import settings
from services.local import stack_file

KIND = "gradient_scale"
MODEL = "builtin:smollm2-135m-instruct"
DATASET = "builtin:python-docs"
PARAMETERS: dict[str, Any] = {
    "sequences": 4,
    "length": 512,
    "batch": 1,
}  # about a minute on two cores; a shard a sequence

PER_LAYER = """\
SELECT layer, a.n AS rows,
       power(10, a.median) AS median_d_a,
       power(10, c.median) AS median_d_c,
       100 * larger.mean AS percent_d_a_above_d_c
FROM layer_summary a
JOIN layer_summary c USING (job_id, layer)
JOIN layer_summary larger USING (job_id, layer)
WHERE job_id = {job} AND a.metric = 'log10_d_a' AND c.metric = 'log10_d_c' AND larger.metric = 'd_a_exceeds_d_c'
ORDER BY layer"""


def main() -> int:
    try:
        with Keyhole() as keyhole:
            job = keyhole.submit(KIND, model=MODEL, dataset=DATASET, **PARAMETERS)
            _announce(job)
            waiting.follow(job)
            job.wait(progress=False)
            _show(keyhole, job)
    except KeyholeError as error:
        output.message(f"Error: {error}")
        return 1
    except KeyboardInterrupt:
        output.message("\nStopped watching; the job goes on. See it with: keyhole jobs")
        return 130
    return 0


def _announce(job: Job) -> None:
    what = f"{KIND} of {MODEL} over {DATASET} ({', '.join(f'{name}={value}' for name, value in PARAMETERS.items())})"
    if job.reused and job.state.terminal:
        output.message(f"Job {job.id} measured {what} already: this is its stored answer, nothing is computed again.")
    elif job.reused:
        output.message(f"Job {job.id} is at work on {what} already; following it.")
    else:
        output.message(f"Submitted job {job.id}: {what}")


def _show(keyhole: Keyhole, job: Job) -> None:
    statement = PER_LAYER.format(job=job.id)
    layers = keyhole.sql(statement, arrow=True).to_pylist()
    output.data(
        f"\nSpread of attention (D_a) and of advantage (D_c) within a query, largest over median; job {job.id}\n"
    )
    output.table(
        ("layer", "rows", "median D_a", "median D_c", "% D_a > D_c"),
        [
            (
                row["layer"],
                row["rows"],
                f"{row['median_d_a']:.1f}",
                f"{row['median_d_c']:.2f}",
                f"{row['percent_d_a_above_d_c']:.1f}",
            )
            for row in layers
        ],
    )
    whole = {row.metric: row for row in job.summary_rows(level="job")}
    share = whole["d_a_exceeds_d_c"].mean or 0.0
    took = output.duration(job.detail.duration_s)
    output.data(f"\n{job.detail.progress.rows:,} rows stored in {took}; D_a > D_c in {share:.1%} of them.")
    output.data(f"\nThe table above is this SQL (keyhole sql, or keyhole psql):\n\n{statement}\n")
    stack = stack_file.read(settings().home.expanduser().absolute())
    if stack is not None:
        output.data(f"Dashboard: {stack.dashboard_url}    API: {stack.api_url}/docs    Stop everything: make down")


if __name__ == "__main__":
    sys.exit(main())
