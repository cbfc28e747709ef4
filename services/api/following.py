"""The background loop of the API: later stages of suites, hopeless members of sweeps, and what else goes on by itself.

Every API process runs it and one leads: the one that holds an advisory lock in a session of its own. Each follower has
a task of its own, so that one that waits for a slow hub, or fails, keeps no other one waiting.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog
from psycopg import Connection

from db.connection import connect
from services.api import delivering, early_stopping, suite_stages, watching
from services.api.follower import Follower, Surroundings

_LOCK = 0x4B4559464F  # one leader at a time; any number that nothing else uses
_STOP_S = 5.0  # a look that is on its way gets so long when the process ends
_log = structlog.get_logger("keyhole.following")

FOLLOWERS: tuple[Follower, ...] = (
    suite_stages.FOLLOWER,
    early_stopping.FOLLOWER,
    *watching.FOLLOWERS,
    delivering.FOLLOWER,
)


@asynccontextmanager
async def following(surroundings: Surroundings, followers: Sequence[Follower] = FOLLOWERS) -> AsyncIterator[None]:
    """Runs the followers, while this process leads, until the context ends."""
    task = asyncio.create_task(_lead_again(surroundings, followers), name="following")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=_STOP_S)


async def _lead_again(surroundings: Surroundings, followers: Sequence[Follower]) -> None:
    """Leadership ends with its session, when the database restarts say; then it is asked for again."""
    troubles = _Troubles()
    while True:
        try:
            await _lead(surroundings, followers)
        except Exception as error:  # the loop must outlive whatever it meets
            troubles.tell("leading", error)
        await asyncio.sleep(surroundings.settings.life.follow_s)


async def _lead(surroundings: Surroundings, followers: Sequence[Follower]) -> None:
    """Wait to become the leader, then run the followers until the session is lost, which raises."""
    every_s = surroundings.settings.life.follow_s
    session = await surroundings.in_thread(_session, surroundings)
    try:
        while not await surroundings.in_thread(_holds_lock, session):
            await asyncio.sleep(every_s)
        async with asyncio.TaskGroup() as tasks:
            for follower in followers:
                tasks.create_task(_rounds(surroundings, follower), name=follower.name)
            while True:
                await asyncio.sleep(every_s)
                await surroundings.in_thread(session.execute, "SELECT 1")
    finally:
        session.close()


async def _rounds(surroundings: Surroundings, follower: Follower) -> None:
    troubles = _Troubles()
    every_s = surroundings.settings.life.follow_s if follower.every_s is None else follower.every_s
    while True:
        try:
            await follower.look(surroundings)
            troubles.over()
        except Exception as error:  # one follower's error is not the others'
            troubles.tell(follower.name, error)
        await asyncio.sleep(every_s)


class _Troubles:
    """Logs an error when it is first met, and not at every round of a database that is away for an hour."""

    def __init__(self) -> None:
        self._last: str | None = None

    def tell(self, name: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if text != self._last:
            _log.warning("follower_failed", follower=name, error=text, exc_info=error)
        self._last = text

    def over(self) -> None:
        self._last = None


def _session(surroundings: Surroundings) -> Connection[Any]:
    url = surroundings.settings.database_url
    assert url is not None, "the API does not start without"
    return connect(url.get_secret_value(), application_name="keyhole-api-following", connect_timeout=5)


def _holds_lock(session: Connection[Any]) -> bool:
    row = session.execute("SELECT pg_try_advisory_lock(%s)", (_LOCK,)).fetchone()
    return bool(row and row[0])
