"""An API whose background loop stands still, so that tests look when they say so, and rows as jobs would leave them."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb

from db.repositories import api_tokens, jobs
from services.api.database import open_pool_of
from services.api.delivering import deliver
from services.api.follower import Surroundings
from services.api.resolving import Turns
from services.api.watching import judge_all, look_at_runs, poll
from services.contracts.settings import LifeCycleSettings, Settings
from services.contracts.states import JobState, Scope
from tests.conftest import MigratedDatabase
from tests.integration.api.conftest import served, write_model

NEVER_S = 1e6  # the background loop of the served API: tests call its followers themselves
SMALL = {"sequences": 2, "length": 64}


@dataclass(frozen=True)
class Watched:
    """What tests of watches share."""

    http: httpx.Client
    reader: httpx.Client
    conn: psycopg.Connection
    settings: Settings
    home: Path
    dataset: str
    submitter: int  # number of the token behind ``http``

    def create(self, expect: int = 201, **body: Any) -> dict[str, Any]:
        answer = self.http.post("/v1/watches", json=body)
        assert answer.status_code == expect, answer.text
        return answer.json()

    def watch(self, watch_id: int) -> dict[str, Any]:
        return self.http.get(f"/v1/watches/{watch_id}").json()

    def alerts(self, **filters: Any) -> list[dict[str, Any]]:
        """Oldest first."""
        return self.http.get("/v1/alerts", params={"limit": 500, **filters}).json()["items"][::-1]

    def look(self, *followers: Callable[[Surroundings], Awaitable[None]], **changes: Any) -> None:
        """One look of each follower: of runs, then of rules, unless told."""
        settings = self.settings.model_copy(update=changes)
        run_looks(settings, followers or (look_at_runs, judge_all))

    def poll(self, watch_id: int) -> None:
        """A look at a folder or repository, as after its time, then at the rules."""
        self.conn.execute("UPDATE keyhole.watch SET looked_at = NULL WHERE id = %s", (watch_id,))
        self.look(poll, judge_all)

    def deliver(self) -> None:
        """Post what is due or put off."""
        self.conn.execute("UPDATE keyhole.alert SET deliver_at = clock_timestamp() WHERE deliver_at IS NOT NULL")
        self.look(deliver)

    def jobs_of(self, suite_id: int) -> list[dict[str, Any]]:
        return self.http.get(f"/v1/suites/{suite_id}").json()["members"]

    def suites(self) -> list[dict[str, Any]]:
        return self.http.get("/v1/suites", params={"limit": 500}).json()["items"][::-1]


def run_looks(settings: Settings, followers: Any) -> None:
    pool = open_pool_of(settings)
    try:

        async def looks() -> None:
            surroundings = Surroundings(pool, Turns(pool=pool), settings)
            for follower in followers:
                await follower(surroundings)

        asyncio.run(looks())
    finally:
        pool.close()


@pytest.fixture
def watched(database: MigratedDatabase, tmp_path: Path) -> Iterator[Watched]:
    (tmp_path / "models").mkdir()
    text = tmp_path / "data" / "text.txt"
    text.parent.mkdir()
    text.write_text("The quick brown fox jumps over the lazy dog. " * 50)
    settings = Settings(
        home=tmp_path,
        database_url=database.owner_url,
        broker_url=None,
        life=LifeCycleSettings(follow_s=NEVER_S),
    )
    with database.connect() as conn:
        token, secret = api_tokens.create(conn, "submitter", Scope.SUBMIT)
        _, read = api_tokens.create(conn, "reader", Scope.READ)
        with served(settings) as url:
            headers = [{"Authorization": f"Bearer {each}"} for each in (secret, read)]
            with (
                httpx.Client(base_url=url, headers=headers[0], timeout=20) as http,
                httpx.Client(base_url=url, headers=headers[1], timeout=20) as reader,
            ):
                yield Watched(http, reader, conn, settings, tmp_path, f"file:{text}", token.id)


def finish(conn: psycopg.Connection, job_id: int, summaries: dict[str, Any] | None = None) -> None:
    """A job's end, as its last child leaves it: ``summaries`` has by metric either (layer, head) → mean, or a row."""
    with conn.transaction():
        for metric, by_place in (summaries or {}).items():
            for (layer, head), value in by_place.items():
                row = value if isinstance(value, dict) else {"mean": value}
                conn.execute(
                    """
                    INSERT INTO keyhole.summary (job_id, metric, layer, head, n, n_infinite, n_undefined, mean, minimum,
                        median, histogram_low, histogram_width, histogram)
                    VALUES (%s, %s, %s, %s, 10, 0, 0, %s, %s, %s, 0, 1, '{10}')
                    """,
                    (job_id, metric, layer, head, row.get("mean"), row.get("minimum"), row.get("median")),
                )
        jobs.set_state(conn, job_id, JobState.SUCCEEDED)


def fail(conn: psycopg.Connection, job_id: int, message: str = "No memory is left.") -> None:
    conn.execute("UPDATE keyhole.job SET error_message = %s WHERE id = %s", (message, job_id))
    jobs.set_state(conn, job_id, JobState.FAILED)


def store_checkpoint(conn: psycopg.Connection, run_id: int, step: int, *reasons: str) -> None:
    """A checkpoint's row; nobody loads it here."""
    conn.execute(
        """
        INSERT INTO keyhole.checkpoint (run_id, step, reasons, identity, model_type, config)
        VALUES (%s, %s, %s, %s, 'gpt2', %s)
        ON CONFLICT (run_id, step) DO UPDATE SET reasons = excluded.reasons
        """,
        (run_id, step, list(reasons or ("interval",)), f"sha256:{run_id}-{step}", Jsonb(CONFIG)),
    )


CONFIG = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_positions": 128, "vocab_size": 256}


def write_checkpoint(folder: Path, step: int, *, age_s: float = 60.0) -> Path:
    """A model folder whose files were last written so long ago."""
    path = write_model(folder / f"step-{step}", rope_theta=float(step + 1))
    then = time.time() - age_s
    for each in (*path.iterdir(), path):
        os.utime(each, (then, then))
    return path
