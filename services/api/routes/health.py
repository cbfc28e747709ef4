"""/v1/health: whether the process lives, and whether it can do its work. The only routes without a token."""

from typing import Any, Literal

import psycopg
from fastapi import APIRouter, Response
from psycopg import Connection
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout
from pydantic import BaseModel

from db import migrate
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
    database, schema = _database(pool)
    answers = enqueue.broker_answers(settings)
    readiness = Readiness(
        ready=database.ok and schema.ok,
        database=database,
        schema_version=schema,
        broker=Part(ok=answers, detail="answers" if answers else "does not answer; jobs wait for the reconciler"),
    )
    response.status_code = 200 if readiness.ready else 503
    return readiness


def _database(pool: ConnectionPool[Connection[Any]]) -> tuple[Part, Part]:
    try:
        with pool.connection(timeout=2.0) as conn:
            migrate.require_head(conn)
    except KeyholeError as error:
        return Part(ok=True, detail="answers"), Part(ok=False, detail=str(error))
    except (psycopg.Error, PoolTimeout, PoolClosed):
        return Part(ok=False, detail="does not answer"), Part(ok=False, detail="unknown while the database is away")
    return Part(ok=True, detail="answers"), Part(ok=True, detail=migrate.head())
