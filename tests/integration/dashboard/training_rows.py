"""Training runs with numbers of every kind, made up so that what the pages say of them can be computed by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from psycopg import Connection
from psycopg.types.json import Jsonb

from db.repositories import suites
from db.repositories.runs import Matrix, Metric
from services.contracts.states import JobState
from tests.integration.new_runs import trained_run

STEPS = (0, 250, 500)
LAYERS, HEADS = 3, 2
FINAL = {"control": 3.0, "natq": 3.2}  # losses of seed 0 at the last step
SEED_EFFECT = 0.01  # added to the losses of every further seed


def entropy(variant: str, seed: int, step: int, layer: int, head: int) -> float:
    return 2.0 + layer + 0.1 * head + step / 1000 * (1.5 if variant == "natq" else 1.0) + 0.01 * seed


def attention_metrics(variant: str, seed: int) -> list[Metric]:
    """Of heads, layers and the model, as training stores them."""
    found = []
    for step in STEPS:
        of_heads = np.array([[entropy(variant, seed, step, la, h) for h in range(HEADS)] for la in range(LAYERS)])
        found += [Metric(step, "entropy_nats", float(of_heads[i]), *i) for i in np.ndindex(LAYERS, HEADS)]
        found += [Metric(step, "entropy_nats", float(of_heads[layer].mean()), layer) for layer in range(LAYERS)]
        found.append(Metric(step, "entropy_nats", float(of_heads.mean())))
    return found


def solver_metrics() -> list[Metric]:
    return [
        Metric(step, name, value * (layer + 1), layer)
        for step in STEPS[1:]
        for layer in range(LAYERS)
        for name, value in (("natq_residual_median", 0.001), ("natq_iterations", 4.0), ("natq_fallback_share", 0.01))
    ]


def matrices() -> list[Matrix]:
    found = [
        Matrix(step, layer, "q", 128, 128, 1.0 + layer + step / 1000, None if step == 0 else 0.01 * (layer + 1))
        for step in STEPS
        for layer in range(LAYERS)
    ]
    return found + [Matrix(step, None, "wte", 1024, 128, 2.0, None) for step in STEPS]


def insert(conn: Connection, variant: str = "control", seed: int = 0, **changes: Any) -> int:
    """One run with all numbers; returns its number."""
    end = FINAL[variant] + SEED_EFFECT * seed
    metrics = attention_metrics(variant, seed) + [
        Metric(step, "loss_nats", end + 1 / step) for step in range(10, 501, 10)
    ]
    metrics += [Metric(500, "tokens_per_s", 20_000.0), Metric(500, "learning_rate", 1e-3)]
    if variant == "natq":
        metrics += solver_metrics()
    described: dict[str, Any] = {
        "name": f"{variant} {seed}",
        "losses": [(0, 7.0), (250, end + 0.5), (500, end)],
        "metrics": metrics,
        "matrices": matrices(),
        "seed": seed,
        "steps": STEPS[-1],
        "variants": [] if variant == "control" else [variant],
    }
    return trained_run(conn, **(described | changes))


MODEL_OF_PAIRS = f"config:gpt-tiny?layers={LAYERS}"  # no other run's, so that lists can be filtered by it


def pairs(conn: Connection, seeds: Sequence[int] = (0, 1)) -> list[int]:
    """Control and NATQ with each seed: numbers of control 0, natq 0, control 1, natq 1, …"""
    return [insert(conn, variant, seed, model=MODEL_OF_PAIRS) for seed in seeds for variant in ("control", "natq")]


def sweep(
    conn: Connection,
    rates: Sequence[float] = (0.001, 0.002),
    seeds: Sequence[int] = (0, 1),
    name: str = "a sweep",
) -> tuple[int, list[int]]:
    """Control and NATQ over two learning rates and weight decays; losses grow with both. Returns sweep and runs."""
    suite_id = suites.insert(conn, name, None)
    axes = {"optimizer.learning_rate": list(rates), "optimizer.weight_decay": [0.0, 0.1]}
    row = conn.execute(
        "INSERT INTO keyhole.sweep (suite_id, model, dataset, body) VALUES (%s, %s, %s, %s) RETURNING id",
        (suite_id, "config:gpt-tiny", "builtin:python-docs", Jsonb({"axes": axes, "parameters": {"steps": STEPS[-1]}})),
    ).fetchone()
    assert row is not None
    made: list[int] = []
    for seed in seeds:
        for rate in rates:
            for decay in axes["optimizer.weight_decay"]:
                for variant in FINAL:
                    end = sweep_loss(variant, rate, decay, seed)
                    lost = seed > 0 and rate == rates[-1] and decay > 0
                    run_id = insert(
                        conn,
                        variant,
                        seed,
                        losses=[(0, 7.0), (250, end + 0.5)] if lost else [(0, 7.0), (250, end + 0.5), (500, end)],
                        state=JobState.CANCELLED if lost else JobState.SUCCEEDED,
                        optimizer={"learning_rate": rate, "weight_decay": decay},
                    )
                    setting = {"optimizer.learning_rate": rate, "optimizer.weight_decay": decay}
                    job = conn.execute("SELECT job_id FROM keyhole.run WHERE id = %s", (run_id,)).fetchone()
                    assert job is not None
                    suites.add(conn, suite_id, len(made), job[0], reused=False)
                    conn.execute(
                        "INSERT INTO keyhole.sweep_member (sweep_id, number, job_id, variant, setting, seed, stopped) "
                        "VALUES (%s, %s, %s, %s, %s, %s, %s)",
                        (row[0], len(made), job[0], variant, Jsonb(setting), seed, "hopeless" if lost else None),
                    )
                    made.append(run_id)
    return row[0], made


def sweep_loss(variant: str, rate: float, decay: float, seed: int) -> float:
    return FINAL[variant] + 100 * (rate - 0.001) + decay + SEED_EFFECT * seed
