"""The API as an ASGI application: ``uvicorn --factory services.api.app:create_app``."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import Depends, FastAPI
from fastapi.concurrency import run_in_threadpool

from services.api import documentation, log, problems
from services.api.database import open_pool_of
from services.api.follower import Surroundings
from services.api.following import following
from services.api.query_parameters import refuse_unknown
from services.api.request_context import RequestContext
from services.api.resolving import Turns
from services.api.routes import (
    alerts,
    checkpoints,
    events,
    health,
    jobs,
    kinds,
    metrics,
    results,
    runs,
    sql,
    suites,
    sweeps,
    tokens,
    watches,
)
from services.contracts.settings import Settings
from services.contracts.settings import settings as environment_settings

_DESCRIPTION = """
Submit jobs, follow them, and read what they measured.
Every error is an RFC 9457 problem (`application/problem+json`) with a `code`, a `hint` and the `request_id`.
Everything but health needs a token: `Authorization: Bearer kh_…`.
"""


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application over ``settings`` (the environment's by default). Its pool lives as long as the application."""
    log.configure()
    chosen = settings or environment_settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        pool = open_pool_of(chosen)
        app.state.pool = pool
        app.state.turns = Turns(pool=pool)
        try:
            async with following(Surroundings(pool, app.state.turns, chosen)):
                yield
        finally:
            await run_in_threadpool(pool.close)

    app = FastAPI(
        title="Keyhole",
        version=version("keyhole"),
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=problems.RESPONSES,
    )
    app.state.settings = chosen
    problems.install(app)
    app.add_middleware(RequestContext)
    for module in (checkpoints, jobs, suites, sweeps, runs, events, results, kinds, sql, tokens, watches, alerts):
        app.include_router(module.router, dependencies=[Depends(refuse_unknown)])
    for module in (health, metrics, documentation):  # asked by balancers and browsers, with what they like
        app.include_router(module.router)
    return app
