"""docs/sql.md, written from the comments of the code: ``python -m db.documentation`` (``--check`` only compares).

The reference comes from the COMMENT statements themselves, the examples from EXAMPLES; tests run every example as the
analyst and compare the committed file with what this writes.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from db.analysis import statements

PATH = Path(__file__).parent.parent / "docs" / "sql.md"
_COMMENT = re.compile(
    r"COMMENT ON (VIEW|COLUMN)\s+\"?analysis\"?\.\"?(\w+)\"?(?:\.\"?(\w+)\"?)?\s+IS\s+ ?'((?:[^']|'')*)'"
)
_PROGRAM = "python -m db.documentation"
_INTRODUCTION = f"""\
# SQL

<!-- Written by `{_PROGRAM}` from the comments in db/views, db/analysis.py and services/contracts. -->

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


@dataclass(frozen=True)
class Example:
    title: str
    query: str


EXAMPLES = (
    Example(
        "Jobs that succeeded, latest first",
        """\
SELECT id, kind, model, dataset, rows, duration_s FROM job
WHERE state = 'succeeded' ORDER BY id DESC LIMIT 20""",
    ),
    Example(
        "Median D_a and D_c of each layer, side by side",
        """\
SELECT layer, round((10 ^ a.median)::numeric, 1) AS d_a, round((10 ^ c.median)::numeric, 1) AS d_c
FROM layer_summary AS a JOIN layer_summary AS c USING (job_id, layer)
WHERE job_id = 1 AND a.metric = 'log10_d_a' AND c.metric = 'log10_d_c' AND a.median < 300 AND c.median < 300
ORDER BY layer""",
    ),
    Example(
        "Share of queries whose attention is spread wider than their advantage",
        """\
SELECT job_id, model, mean AS share FROM job_summary JOIN job ON job.id = job_id
WHERE metric = 'd_a_exceeds_d_c' ORDER BY job_id""",
    ),
    Example(
        "The ten heads with the most concentrated attention",
        """\
SELECT layer, head, median, q05, q95 FROM head_summary
WHERE job_id = 1 AND metric = 'log10_d_a' ORDER BY median DESC, layer, head LIMIT 10""",
    ),
    Example(
        "A histogram, one row per bin",
        """\
SELECT histogram_low + (bin - 1) * histogram_width AS low, count
FROM job_summary, unnest(histogram) WITH ORDINALITY AS unrolled (count, bin)
WHERE job_id = 1 AND metric = 'log10_d_a' AND count > 0 ORDER BY low""",
    ),
    Example(
        "The rows of one head in one sequence",
        """\
SELECT query, log10_d_a, log10_d_c FROM gradient_scale
WHERE job_id = 1 AND layer = 0 AND head = 1 AND sequence = 0 ORDER BY query""",
    ),
    Example(
        "The queries with the largest D_c, with their token and its document",
        """\
SELECT g.layer, g.head, g.sequence, g.query, g.log10_d_c, token.text, token.document_name
FROM (SELECT * FROM gradient_scale WHERE job_id = 1 AND log10_d_c < 'Infinity'
      ORDER BY log10_d_c DESC, layer, head, sequence, query LIMIT 10) AS g
JOIN token ON token.job_id = 1 AND token.sequence = g.sequence AND token.position = g.query
ORDER BY g.log10_d_c DESC""",
    ),
    Example(
        "The text around a query: the position and the ten before it",
        """\
SELECT string_agg(text, '' ORDER BY position) FROM token
WHERE job_id = 1 AND sequence = 0 AND position BETWEEN 2 AND 12""",
    ),
    Example(
        "Correlation of the two within each layer",
        """\
SELECT layer, corr(log10_d_a, log10_d_c), count(*) FROM gradient_scale
WHERE job_id = 1 AND log10_d_a < 'Infinity' AND log10_d_c < 'Infinity' GROUP BY layer ORDER BY layer""",
    ),
    Example(
        "The same head in two jobs",
        """\
SELECT layer, head, a.median AS first, b.median AS second, b.median - a.median AS difference
FROM head_summary AS a JOIN head_summary AS b USING (layer, head, metric)
WHERE a.job_id = 1 AND b.job_id = 2 AND metric = 'log10_d_a'
ORDER BY abs(b.median - a.median) DESC NULLS LAST LIMIT 10""",
    ),
    Example(
        "The strongest buried keys: coalitions on keys that no agreeing head ranks among its first hundred",
        """\
SELECT k.layer, k.sequence, k.query, k.key, token.text, k.direction, k.heads, k.score, k.attention_rank_smallest
FROM (SELECT * FROM buried_key WHERE job_id = 1 AND attention_rank_smallest > 100
      ORDER BY score DESC, layer, sequence, query, place LIMIT 10) AS k
LEFT JOIN token ON token.job_id = 1 AND token.sequence = k.sequence AND token.position = k.key
ORDER BY k.score DESC""",
    ),
    Example(
        "Table 5 with thresholds of one's own, from the profiles of heads",
        """\
SELECT job_id, count(*) AS heads, avg(entropy_nats) AS entropy_nats, avg(top_weight) AS top_weight,
       count(*) FILTER (WHERE local_mass > 0.6) AS heads_local,
       count(*) FILTER (WHERE induction_score > 0.4) AS induction_heads
FROM attention_profile_heads GROUP BY job_id ORDER BY job_id""",
    ),
    Example(
        "Attention-transfer sweeps on calibrated rows: the observed token's loss moves, the expected one hardly does",
        """\
SELECT layer, head, sequence, query, r, hard_change_nats, soft_change_nats FROM transfer_sweep_change
WHERE job_id = 1 AND r < 0.1 ORDER BY hard_change_nats DESC, layer, head, sequence, query LIMIT 10""",
    ),
    Example(
        "What went wrong lately",
        """\
SELECT id, error_code, error_message, error_hint FROM job
WHERE state = 'failed' ORDER BY finished_at DESC LIMIT 10""",
    ),
)


def text() -> str:
    """The whole of docs/sql.md."""
    parts = [_INTRODUCTION, "## Examples\n"]
    parts += [f"{example.title}:\n\n```sql\n{example.query};\n```\n" for example in EXAMPLES]
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
