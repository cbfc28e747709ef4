"""What a follower is: something the API process looks after by itself, and what it has at hand for that."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from fastapi.concurrency import run_in_threadpool
from psycopg import Connection
from psycopg_pool import ConnectionPool

from services.api.resolving import Turns
from services.contracts.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Surroundings:
    pool: ConnectionPool[Connection[Any]]
    turns: Turns
    settings: Settings

    async def in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What blocks, such as a question to the database, away from the loop that answers requests."""
        return await run_in_threadpool(call, *args, **kwargs)


@dataclass(frozen=True)
class Follower:
    """``look`` is called again and again; what it does must be safe to do twice, and to stop at any point.

    It decides by rows that it holds locked in the transaction that writes what it decided, so that a crash between two
    steps, or a second process that believes itself the leader, submits nothing twice. No transaction stays open while
    anything but the database is asked. An error in one item is stored with it, where its user sees it, and does not
    keep the others waiting; what ``look`` raises is logged, and it is called again.
    """

    name: str
    look: Callable[[Surroundings], Awaitable[None]]
    every_s: float | None = None  # KEYHOLE_LIFE__FOLLOW_S unless given
