"""Suites and sweeps without an API process: submitted, looked after by one look of a follower, and carried out."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from db.repositories import api_tokens, jobs, runs, suites
from db.repositories.runs import Metric
from services.api.database import open_pool_of
from services.api.follower import Surroundings
from services.api.resolving import Turns
from services.api.suite_plan import plan_of_sweep
from services.api.suites import insert, prepared_plan, submit
from services.contracts.settings import Settings
from services.contracts.states import JobState, Scope
from services.contracts.suites import SuiteCreate
from services.contracts.sweeps import SweepCreate
from tests.conftest import MigratedDatabase
from tests.integration.new_runs import stored_checkpoint

T = TypeVar("T")


@dataclass(frozen=True)
class Background:
    settings: Settings
    token_id: int
    dataset: str

    def run(self, work: Callable[[Surroundings], Awaitable[T]]) -> T:
        """Something asynchronous with surroundings of its own, as another process would have them."""

        async def with_surroundings() -> T:
            pool = open_pool_of(self.settings)
            try:
                return await work(Surroundings(pool, Turns(pool=pool), self.settings))
            finally:
                pool.close()

        return asyncio.run(with_surroundings())

    def suite(self, **body: Any) -> int:
        async def submitted(around: Surroundings) -> int:
            made = SuiteCreate.model_validate({"dataset": self.dataset, "models": ["config:gpt-tiny"]} | body)
            return await submit(around.pool, around.turns, made, token_id=self.token_id, settings=around.settings)

        return self.run(submitted)

    def sweep(self, **body: Any) -> tuple[int, int]:
        """Numbers of the sweep and of its suite."""

        async def submitted(around: Surroundings) -> tuple[int, int]:
            made = SweepCreate.model_validate({"dataset": self.dataset, "model": "config:gpt-tiny"} | body)
            ready = await prepared_plan(
                around.turns, plan_of_sweep(made), token_id=self.token_id, settings=around.settings
            )
            with around.pool.connection() as conn, conn.transaction():
                inserted = insert(conn, ready)
            assert inserted.sweep_id is not None
            return inserted.sweep_id, inserted.suite_id

        return self.run(submitted)


@contextmanager
def background(database: MigratedDatabase, folder: Path) -> Iterator[Background]:
    text = folder / "data" / "text.txt"
    text.parent.mkdir(parents=True)
    text.write_text("The quick brown fox jumps over the lazy dog. " * 50)
    with database.connect() as conn:
        token_id = api_tokens.create(conn, "background", Scope.SUBMIT)[0].id
    yield Background(Settings(home=folder, database_url=database.owner_url), token_id, f"file:{text}")  # type: ignore[arg-type]  # text for a secret


def members(conn: psycopg.Connection, suite_id: int, stage: int = 0) -> list[jobs.JobRow]:
    """The suite's jobs of one stage, in their order."""
    ids = [row.job_id for row in suites.members(conn, suite_id) if row.stage == stage]
    found = {row.id: row for row in jobs.listed(conn, ids)}
    return [found[each] for each in ids]


def train(
    conn: psycopg.Connection,
    job_id: int,
    losses: Sequence[tuple[int, float]] = ((0, 7.0), (4, 3.5)),
    state: JobState = JobState.SUCCEEDED,
) -> int:
    """Let a training job have come as far as its losses, with a checkpoint at each, and end; returns its run."""
    run_id = runs.of_job(conn, job_id)
    assert run_id is not None
    runs.write(conn, run_id, [Metric(step, "validation_loss_nats", loss) for step, loss in losses])
    runs.told(conn, run_id, max(step for step, _ in losses))
    for number, (step, loss) in enumerate(losses):
        reasons = [*(["first"] if number == 0 else []), *(["last", "best"] if number == len(losses) - 1 else [])]
        stored_checkpoint(conn, run_id, step, reasons=reasons or ["interval"], validation_loss_nats=loss)
    if state is not JobState.QUEUED:
        with conn.transaction():
            jobs.lock(conn, job_id)
            jobs.set_state(conn, job_id, state)
    return run_id
