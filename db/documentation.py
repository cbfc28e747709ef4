"""docs/sql.md, written from the comments of the code: ``python -m db.documentation`` (``--check`` only compares).

The reference comes from the COMMENT statements themselves, the metrics from the contracts, the examples from
db/examples.py; tests run every example as the analyst and compare the committed file with what this writes.
"""

import re
import sys
from pathlib import Path

from db.analysis import statements
from db.examples import EXAMPLES, Example
from services.contracts.kinds import KINDS
from services.contracts.tables import SummaryMetric

PATH = Path(__file__).parent.parent / "docs" / "sql.md"
_COMMENT = re.compile(
    r"COMMENT ON (VIEW|COLUMN)\s+\"?analysis\"?\.\"?(\w+)\"?(?:\.\"?(\w+)\"?)?\s+IS\s+ ?'((?:[^']|'')*)'"
)
_PROGRAM = "python -m db.documentation"
_INTRODUCTION = f"""\
# SQL

<!-- Written by `{_PROGRAM}` from db/views, db/analysis.py, db/examples.py and services/contracts. -->

Everything Keyhole measured can be read in SQL, with the role `analyst`: through `keyhole sql "SELECT …"` (table, CSV,
JSON or Parquet), `POST /v1/sql`, `Keyhole().sql(…)` in Python, or any PostgreSQL client (`keyhole psql` prints the
connection). The role reads the views below, schema `analysis`, and nothing else; statements are read-only.

- **Limits.** A statement ends after `KEYHOLE_SQL_TIMEOUT_S` (30 s) and `KEYHOLE_SQL_ROW_LIMIT` rows (1,000,000; the
  answer says when it was cut). Direct connections are held to the same time. For more, use `keyhole export`.
- **Shared by all analysts:** 30 connections at once, of which those that idle for ten minutes, and the longest idle
  beyond ten, are ended; temporary files of 1 GB for each process of a statement; and, where the database runs on the
  reconciler's machine, 2 GiB of memory, beyond which the largest session is ended. `SET work_mem` works in sessions of
  your own; take as little as helps.
- **`NOTIFY`** works between direct connections and reaches nobody else; through the service it does nothing.
- **Give `job_id`.** Per-query tables hold the rows of all jobs, partitioned by job: with `job_id = …` PostgreSQL
  reads that job's rows only. For one head or one sequence add `layer`, `head` and `sequence`.
- **Summaries first.** `head_summary`, `layer_summary` and `job_summary` answer in milliseconds what a scan of
  millions of rows would.
- **Special values.** `'NaN'` sorts above `'Infinity'`, and `NaN = NaN` is true. Write `column < 'Infinity'` to leave
  both out.
- **Types in answers** of the service: `numeric` comes as a double; JSON, intervals and other types as text.
- The role's password is shared by all analysts of an installation. Who has it can change it, as every PostgreSQL role
  can its own; the next upgrade (`keyhole migrate`, or a restart of the embedded stack) puts it back.
"""


_OF_EXAMPLES = """\
Put the numbers of your own jobs where the examples say 1 or 2.
"""
_OF_METRICS = """\
What `head_summary`, `layer_summary` and `job_summary` describe, by kind of job; also to be had in SQL, as the view
`metric`. Each value is taken of one row of the view named. Bins are those of the histograms: values outside are counted
in the first or last.
"""


def text() -> str:
    """The whole of docs/sql.md."""
    parts = [_INTRODUCTION, "## Examples\n", _OF_EXAMPLES]
    for group in dict.fromkeys(example.group for example in EXAMPLES):
        parts.append(f"### {_heading(group)}\n")
        parts += [_example(example) for example in EXAMPLES if example.group == group]
    parts += ["## Metrics\n", _OF_METRICS]
    for kind in (kind for kind in KINDS.values() if kind.metrics):
        rows = "\n".join(map(_metric, kind.metrics))
        parts.append(
            f"### Metrics of `{kind.name}`\n\n| metric | of the rows of | meaning | bins |\n|---|---|---|---|\n{rows}\n"
        )
    parts.append("## Views\n")
    for view, (comment, columns) in sorted(views().items()):
        rows = "\n".join(f"| `{name}` | {_cell(meaning)} |" for name, meaning in columns.items())
        parts.append(f"### `{view}`\n\n{comment}\n\n| column | meaning |\n|---|---|\n{rows}\n")
    return "\n".join(parts)


def views() -> dict[str, tuple[str, dict[str, str]]]:
    """Comment and commented columns of every view of analysts."""
    found: dict[str, tuple[str, dict[str, str]]] = {}
    for what, view, column, quoted in _COMMENT.findall("\n".join(statements())):
        comment = quoted.replace("''", "'")
        if what == "VIEW":
            found[view] = (comment, {})
        else:
            found[view][1][column] = comment
    return found


def _heading(group: str) -> str:
    return f"Jobs of `{group}`" if group in KINDS else group


def _example(example: Example) -> str:
    return f"{example.title}:\n\n```sql\n{example.query};\n```\n"


def _metric(metric: SummaryMetric) -> str:
    bins = f"{metric.bins} from {metric.low:g} in steps of {metric.width:g}"
    return f"| `{metric.name}` | `{metric.table}` | {_cell(metric.comment)} | {bins} |"


def _cell(meaning: str) -> str:
    return meaning.replace("|", "\\|")


def main() -> int:
    if "--check" in sys.argv:
        if PATH.read_text(encoding="utf-8") == text():
            return 0
        print(f"{PATH} is out of date. Write it again with: {_PROGRAM}", file=sys.stderr)
        return 1
    PATH.write_text(text(), encoding="utf-8")
    print(f"Wrote {PATH}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
