"""A watch with checkpoints, crossings and alerts, which the examples of docs/sql.md find."""

from psycopg import Connection

from db.repositories import alerts, watch_models, watch_rules, watches
from db.repositories.alerts import NewAlert
from db.repositories.watch_rules import Place

RULE = {"type": "metric", "metric": "entropy_nats", "of": "attention_profile", "level": "head", "below": 0.5}


def insert(conn: Connection, run_id: int, job_id: int) -> int:
    """A watch of the run whose only probe is the job, which met its rule at step 250."""
    body = {"kinds": ["attention_profile"], "rules": [RULE], "dataset": "builtin:python-docs", "poll_s": 60}
    watch_id = watches.insert(conn, "collapse", f"run:{run_id}", body, None)
    source = f"run:{run_id}@250"
    row = conn.execute("SELECT suite_id FROM keyhole.suite_job WHERE job_id = %s", (job_id,)).fetchone()
    assert row is not None
    watch_models.add(conn, watch_id, source, run_id=run_id, step=250, judged=True, problem="job 9 failed")
    watch_models.set_suite(conn, watch_id, source, row[0])
    watch_rules.met(conn, watch_id, 0, run_id, {Place(1, 2): (250, 0.3)})
    raised = NewAlert(
        watch_id, 0, run_id, job_id, source, 250, "entropy_nats", None, 1, 2, 0.3, 0.5, 0, "entropy_nats is 0.3"
    )
    alerts.insert(conn, [raised], deliver=False)
    return watch_id
