"""Two runs with rows in every table of training, which the examples of docs/sql.md find."""

import numpy as np
from psycopg import Connection

from db.repositories import jobs, suites, sweeps
from db.repositories.runs import Matrix, Metric
from services.contracts.training.sweep import Member
from tests.integration.new_jobs import submission
from tests.integration.new_runs import stored_checkpoint, trained_run

STEPS = (0, 250, 500)
LAYERS = 2
WIDTHS = (64, 128, 256)


def insert(conn: Connection) -> list[int]:
    return [_insert(conn, seed) for seed in (0, 1)]


def insert_sweep(conn: Connection, run_ids: list[int]) -> None:
    """A sweep of which the runs are the seeds of one setting."""
    suite_id = suites.insert(conn, "a sweep", None)
    sweep_id = sweeps.insert(conn, suite_id, "config:gpt-tiny", "builtin:python-docs", {})
    rows = conn.execute("SELECT job_id FROM keyhole.run WHERE id = ANY(%s) ORDER BY id", (run_ids,)).fetchall()
    members = [Member("control", {"optimizer.learning_rate": 0.001}, seed, {}) for seed in (0, 1)]
    sweeps.add(conn, sweep_id, [(member, job_id) for member, (job_id,) in zip(members, rows, strict=True)])


def insert_ladder(conn: Connection) -> int:
    """A suite of runs of three widths, two seeds each, whose norms grow as powers of the width with some noise."""
    suite_id = suites.insert(conn, "a ladder", None)
    runs = [(width, seed) for width in WIDTHS for seed in (0, 1)]
    for position, (width, seed) in enumerate(runs):
        model = f"config:gpt-tiny?width={width}"
        run_id = trained_run(conn, name=f"width {width}", matrices=ladder(width, seed), seed=seed, model=model)
        row = conn.execute("SELECT job_id FROM keyhole.run WHERE id = %s", (run_id,)).fetchone()
        assert row is not None
        suites.add(conn, suite_id, position, row[0], reused=False)
    return suite_id


def ladder(width: int, seed: int) -> list[Matrix]:
    """Norms of a run of the ladder: of q, a square, and of a matrix with four times as many outputs."""
    draw = np.random.default_rng([width, seed])
    return [
        Matrix(
            step,
            layer,
            matrix,
            height,
            width,
            0.04 * width**0.5 * draw.uniform(0.9, 1.1),
            None if step == 0 else 0.001 * width**0.6 * draw.uniform(0.9, 1.1),
        )
        for step in STEPS
        for layer in range(LAYERS)
        for matrix, height in (("q", width), ("mlp.c_fc", 4 * width))
    ]


def _insert(conn: Connection, seed: int) -> int:
    entropies = [
        Metric(step, "entropy_nats", 3.0 - step / 500 + layer / 10, layer) for step in STEPS for layer in range(LAYERS)
    ]
    matrices = [
        Matrix(step, layer, "q", 128, 128, 1.0 + step / 1000, None if step == 0 else 0.01)
        for step in STEPS
        for layer in range(LAYERS)
    ]
    losses = [(step, 7.0 - step / 200 + seed / 10) for step in STEPS]
    run_id = trained_run(conn, name=f"run {seed}", losses=losses, metrics=entropies, matrices=matrices, seed=seed)
    for step, loss in losses:
        stored_checkpoint(conn, run_id, step, validation_loss_nats=loss)
    jobs.insert(conn, submission(model_source=f"run:{run_id}@500", model_identity=f"sha256:{run_id}-500"))
    return run_id
