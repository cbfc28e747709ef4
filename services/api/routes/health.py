"""/v1/health: whether the process lives, and whether it can do its work. The only routes without a token."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import psycopg
from fastapi import APIRouter, Response
from psycopg import Connection
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout
from pydantic import BaseModel

from db import migrate
from db.connection import connect
from services.api import enqueue
from services.api.database import Pool, ServerSettings
from services.contracts.errors import KeyholeError

router = APIRouter(prefix="/v1/health", tags=["health"])


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Part(BaseModel):
    ok: bool
    detail: str


class Readiness(BaseModel):
    ready: bool  # database and schema: without the broker jobs are taken all the same and start a little later
    database: Part
    schema_version: Part
    broker: Part


@router.get("")
def health() -> Health:
    """The process answers."""
    return Health()


@router.get("/ready", responses={503: {"model": Readiness, "description": "Not ready; each part says why"}})
def ready(pool: Pool, settings: ServerSettings, response: Response) -> Readiness:
    """Database, schema and broker, each with its state."""
    database, schema = _database(pool, settings)
    answers = enqueue.broker_answers(settings)
    readiness = Readiness(
        ready=database.ok and schema.ok,
        database=database,
        schema_version=schema,
        broker=Part(ok=answers, detail="answers" if answers else "does not answer; jobs wait for the reconciler"),
    )
    response.status_code = 200 if readiness.ready else 503
    return readiness


def _database(pool: ConnectionPool[Connection[Any]], settings: ServerSettings) -> tuple[Part, Part]:
    try:
        with _any_connection(pool, settings) as conn:
            migrate.require_head(conn)
    except KeyholeError as error:
        return Part(ok=True, detail="answers"), Part(ok=False, detail=str(error))
    except (psycopg.Error, PoolTimeout, PoolClosed):
        return Part(ok=False, detail="does not answer"), Part(ok=False, detail="unknown while the database is away")
    return Part(ok=True, detail="answers"), Part(ok=True, detail=migrate.head())


@contextmanager
def _any_connection(pool: ConnectionPool[Connection[Any]], settings: ServerSettings) -> Iterator[Connection[Any]]:
    """One of the pool's, or while requests have them all one of its own: busy is not unready."""
    assert settings.database_url is not None  # the pool was opened with it
    try:
        conn = pool.getconn(timeout=2.0)
    except PoolTimeout:
        with connect(
            settings.database_url.get_secret_value(), application_name="keyhole-api", connect_timeout=2
        ) as own:
            yield own
        return
    try:
        yield conn
    finally:
        pool.putconn(conn)
