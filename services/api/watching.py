"""Watches followed: new checkpoints get their probes, rules are applied to what comes back.

Three followers, so that a slow hub keeps neither the watches of runs nor the rules waiting. A checkpoint and the suite
of its probes are stored in one transaction that holds the watch's row: it gets its probes once, whoever looks and
whatever dies.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi.exceptions import RequestValidationError
from psycopg import Connection
from psycopg_pool import ConnectionPool

from db.repositories import api_tokens, watch_models, watch_targets, watches
from db.repositories.watches import WatchRow
from services.api import suites
from services.api.defects import Defects
from services.api.follower import Follower, Surroundings
from services.api.watch_judging import judge, measures
from services.api.watched_series import in_progress, present
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.sources import step_in
from services.contracts.suites import SuiteCreate
from services.contracts.watches import Target, parse_target

MOST_AT_ONCE = 10  # checkpoints that a watch submits at one look
Pool = ConnectionPool[Connection[Any]]
_judging = Defects("watch_not_judged", "Applying the rules")
_looking = Defects("watch_not_looked_at", "Looking for checkpoints")
_submitting = Defects("checkpoint_not_submitted", "Submitting the probes")


@dataclass(frozen=True)
class New:
    """A checkpoint that a watch has not seen."""

    source: str
    run_id: int | None
    step: int | None


async def judge_all(surroundings: Surroundings) -> None:
    """Apply the rules of every watch."""
    for watch in await surroundings.in_thread(_active, surroundings.pool, wake=True):
        try:
            await surroundings.in_thread(judge, surroundings.pool, watch)
        except Exception as error:  # one watch's trouble is not the others'
            told = _judging.met(watch.id, error, watch=watch.id)
            await surroundings.in_thread(_looked, surroundings.pool, watch, told)
        else:
            if _judging.over(watch.id):
                await surroundings.in_thread(_looked, surroundings.pool, watch, None)


async def look_at_runs(surroundings: Surroundings) -> None:
    """Submit the probes of new checkpoints of runs."""
    for watch in await surroundings.in_thread(_active, surroundings.pool):
        target = parse_target(watch.target)
        if target.of_runs:
            try:
                news = await surroundings.in_thread(_unseen_of_runs, surroundings.pool, watch, target)
                await _submit_all(surroundings, watch, news)
            except Exception as error:
                told = _looking.met(watch.id, error, watch=watch.id)
                await surroundings.in_thread(_looked, surroundings.pool, watch, told)
            else:
                _looking.over(watch.id)


async def poll(surroundings: Surroundings) -> None:
    """Look at folders and repositories whose time has come, and submit the probes of what is new there."""
    watching = await surroundings.in_thread(_active, surroundings.pool)
    await asyncio.gather(*(_poll_one(surroundings, watch) for watch in watching))


async def _poll_one(surroundings: Surroundings, watch: WatchRow) -> None:
    source = parse_target(watch.target).source
    if source is None or not await surroundings.in_thread(_begin_poll, surroundings.pool, watch):
        return
    try:
        found = await present(surroundings.turns, source, surroundings.settings)
        unseen = await surroundings.in_thread(_unseen, surroundings.pool, watch, found)
        news = [New(each, None, step_of(each)) for each in unseen[:MOST_AT_ONCE]]
        await _submit_all(surroundings, watch, news)
    except KeyholeError as error:
        await surroundings.in_thread(_looked, surroundings.pool, watch, str(error))
        return
    except Exception as error:
        told = _looking.met(watch.id, error, watch=watch.id)
        await surroundings.in_thread(_looked, surroundings.pool, watch, told)
        return
    _looking.over(watch.id)
    if len(unseen) > len(news):
        await surroundings.in_thread(_look_again, surroundings.pool, watch)


def step_of(source: str) -> int | None:
    """The step that the name of a checkpoint tells; None if it has no number, or is the hash of a commit."""
    last = re.split("[/@]", source)[-1]
    if source.startswith("hf:") and re.fullmatch("[0-9a-f]{40}", last):
        return None
    return step_in(last)


async def _submit_all(surroundings: Surroundings, watch: WatchRow, news: Sequence[New]) -> None:
    """Submit what can be; what cannot is the watch's problem, and tried again where that may help."""
    problems: list[str] = []
    for new in news:
        try:
            await _submit(surroundings, watch, new)
        except (KeyholeError, RequestValidationError) as error:
            told = str(error) if isinstance(error, KeyholeError) else f"{error.errors()[0]['msg']}."
            problems.append(f"{new.source}: {told}")
            if not await surroundings.in_thread(_may_pass, error, new.source):
                await surroundings.in_thread(_give_up, surroundings.pool, watch, new, told)
        except Exception as error:
            told = _submitting.met((watch.id, new.source), error, watch=watch.id, source=new.source)
            problems.append(f"{new.source}: {told}")
        else:
            _submitting.over((watch.id, new.source))
    more = f" And {len(problems) - 1} more." if len(problems) > 1 else ""
    problem = problems[0] + more if problems else _judging.of(watch.id)
    await surroundings.in_thread(_looked, surroundings.pool, watch, problem)


async def _submit(surroundings: Surroundings, watch: WatchRow, new: New) -> None:
    pool, token_id = surroundings.pool, watch.submitted_by
    if token_id is None or not await surroundings.in_thread(_may_submit, pool, token_id):
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            "The token that submitted the watch has expired or was revoked; nothing is submitted in its name.",
            "Make the watch again with a token of your own.",
        )
    body = suite_of(watch, new)
    ready = await suites.prepared(surroundings.turns, body, token_id=token_id, settings=surroundings.settings)
    inserted = await surroundings.in_thread(_store, pool, watch, new, ready)
    if inserted is not None:
        await surroundings.in_thread(suites.announce, surroundings.settings, inserted)


def suite_of(watch: WatchRow, new: New) -> SuiteCreate:
    """The suite of probes for one checkpoint."""
    at = new.source.rpartition("/")[2] if new.run_id is None else f"run {new.run_id} step {new.step}"
    fields = ("preset", "probes", "dataset", "parameters", "priority", "time_limit_s")
    chosen = {name: watch.body[name] for name in fields if watch.body.get(name) is not None}
    return SuiteCreate.model_validate({**chosen, "models": [new.source], "name": f"{watch.name[:120]} · {at[-70:]}"})


def _store(pool: Pool, watch: WatchRow, new: New, ready: suites.Prepared) -> suites.Inserted | None:
    """The checkpoint and its suite; None if the watch has it already, or has been stopped meanwhile."""
    with pool.connection() as conn, conn.transaction():
        if not watches.lock(conn, watch.id, skip=False):
            return None
        if not watch_models.add(conn, watch.id, new.source, run_id=new.run_id, step=new.step):
            return None
        inserted = suites.insert(conn, ready)
        watch_models.set_suite(conn, watch.id, new.source, inserted.suite_id)
        return inserted


def _may_pass(error: Exception, source: str) -> bool:
    """Whether it helps to try again: hub and database come back, and a folder may be in the middle of being written."""
    if isinstance(error, KeyholeError) and error.code is ErrorCode.UNAVAILABLE:
        return True
    return source.startswith("path:") and in_progress(Path(source.removeprefix("path:")))


def _give_up(pool: Pool, watch: WatchRow, new: New, problem: str) -> None:
    with pool.connection() as conn, conn.transaction():
        if watches.lock(conn, watch.id, skip=False):
            watch_models.add(
                conn, watch.id, new.source, run_id=new.run_id, step=new.step, judged=True, problem=problem[:1000]
            )


def _active(pool: Pool, *, wake: bool = False) -> list[WatchRow]:
    with pool.connection() as conn:
        if wake:
            watches.wake(conn)
        return watches.active(conn)


def _unseen_of_runs(pool: Pool, watch: WatchRow, target: Target) -> list[New]:
    assert target.number is not None
    if not measures(watch.body) or _time_is_over(watch):
        return []
    with pool.connection() as conn:
        watch_targets.join_runs(conn, watch.id, target.form, target.number)
        found = watch_targets.unseen_checkpoints(conn, watch.id, MOST_AT_ONCE)
    return [New(each.source, each.run_id, each.step) for each in found]


def _begin_poll(pool: Pool, watch: WatchRow) -> bool:
    if _time_is_over(watch):
        return False
    with pool.connection() as conn:
        return watches.begin_poll(conn, watch.id, float(watch.body["poll_s"]))


def _time_is_over(watch: WatchRow) -> bool:
    until = watch.body.get("until")
    return until is not None and datetime.fromisoformat(until) <= datetime.now(UTC)


def _unseen(pool: Pool, watch: WatchRow, sources: Sequence[str]) -> list[str]:
    with pool.connection() as conn:
        return watch_models.unseen(conn, watch.id, sources)


def _look_again(pool: Pool, watch: WatchRow) -> None:
    with pool.connection() as conn:
        watches.look_again(conn, watch.id)


def _looked(pool: Pool, watch: WatchRow, problem: str | None) -> None:
    with pool.connection() as conn:
        watches.looked(conn, watch.id, problem)


def _may_submit(pool: Pool, token_id: int) -> bool:
    with pool.connection() as conn:
        return api_tokens.may_submit(conn, token_id)


FOLLOWERS = (
    Follower("rules", judge_all),
    Follower("watched runs", look_at_runs),
    Follower("watched folders", poll, every_s=1.0),
)
