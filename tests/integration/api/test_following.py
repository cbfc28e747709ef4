"""The background loop of the API: one leader among processes, followers that do not disturb each other."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psycopg

from services.api.database import open_pool_of
from services.api.follower import Follower, Surroundings
from services.api.following import following
from services.api.resolving import Turns
from services.contracts.settings import LifeCycleSettings, Settings
from tests.conftest import MigratedDatabase

SOON = LifeCycleSettings(follow_s=0.02)


def settings_of(database: MigratedDatabase) -> Settings:
    return Settings(database_url=database.owner_url, life=SOON)  # type: ignore[arg-type]  # text for a secret


@contextmanager
def process(database: MigratedDatabase, followers: Sequence[Follower]) -> Iterator[None]:
    """What an API process does with its followers, in a thread with a loop of its own."""
    stop, started = threading.Event(), threading.Event()

    async def run() -> None:
        settings = settings_of(database)
        pool = open_pool_of(settings)
        try:
            async with following(Surroundings(pool, Turns(), settings), followers):
                started.set()
                while not stop.is_set():
                    await asyncio.sleep(0.01)
        finally:
            pool.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert started.wait(20)
        yield
    finally:
        stop.set()
        thread.join(20)
        assert not thread.is_alive()


class Counting:
    """A follower that counts its looks."""

    def __init__(self, name: str, then: Callable[[], None] = lambda: None) -> None:
        self.looks = 0
        self.then = then
        self.follower = Follower(name, self._look)

    async def _look(self, surroundings: Surroundings) -> None:
        self.looks += await surroundings.in_thread(lambda: 1)
        self.then()


def until(what: str, ask: Callable[[], bool], limit_s: float = 20) -> None:
    deadline = time.monotonic() + limit_s
    while not ask():
        assert time.monotonic() < deadline, f"still not so: {what}"
        time.sleep(0.01)


def test_one_process_leads_and_another_takes_over_when_it_ends(database):
    first, second = Counting("first"), Counting("second")
    with process(database, [first.follower]):
        until("the first leads", lambda: first.looks > 0)
        with process(database, [second.follower]):
            seen = first.looks
            until("the first goes on", lambda: first.looks > seen + 20)
            assert second.looks == 0
        seen = first.looks
        until("the first goes on", lambda: first.looks > seen)
    with process(database, [second.follower]):
        until("the second leads", lambda: second.looks > 0)


def test_a_leader_whose_session_is_ended_leads_again(database):
    counting = Counting("follower")
    with process(database, [counting.follower]):
        until("it leads", lambda: counting.looks > 0)
        with psycopg.connect(database.superuser_url, autocommit=True) as conn:
            ended = conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'keyhole-api-following' AND datname = current_database()"
            ).fetchall()
        assert ended == [(True,)]
        seen = counting.looks
        until("it goes on", lambda: counting.looks > seen + 20)


def test_a_follower_that_raises_or_hangs_stops_no_other(database):
    def raises() -> None:
        raise ValueError("not this time")

    released = asyncio.Event()

    async def hangs(surroundings: Surroundings) -> None:
        await released.wait()

    failing, healthy = Counting("failing", raises), Counting("healthy")
    with process(database, [failing.follower, Follower("hanging", hangs), healthy.follower]):
        until("both are called again", lambda: min(failing.looks, healthy.looks) > 5)
