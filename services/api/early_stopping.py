"""Gives up hopeless settings of sweeps that ask for it: a follower.

At each step asked for, settings of one variant are compared by the mean validation loss of their seeds so far. A
setting is given up whole: its members that have not ended are cancelled, so that no setting's mean is taken over the
seeds that happened to be lucky. Members that a user retries after that are left alone.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from psycopg import Connection
from psycopg_pool import ConnectionPool

from db.repositories import jobs, sweep_stopping
from db.repositories.sweep_stopping import Contender
from services.api.defects import Defects
from services.api.follower import Follower, Surroundings
from services.contracts.errors import ErrorCode
from services.contracts.training.sweep import EarlyStopping

Pool = ConnectionPool[Connection[Any]]
Setting = tuple[str, str]  # variant, and the values on the axes as text
_log = structlog.get_logger("keyhole.following")
_defects = Defects("sweep_not_looked_at", "Early stopping")


async def look(surroundings: Surroundings) -> None:
    """Cancel the members of every setting that has become hopeless since the last look."""
    for sweep_id, body in await surroundings.in_thread(_open_sweeps, surroundings.pool):
        try:
            await surroundings.in_thread(_judge, surroundings.pool, sweep_id, body)
        except Exception as error:  # one sweep's trouble is not the others'
            _defects.met(sweep_id, error, sweep=sweep_id)
        else:
            _defects.over(sweep_id)


def _open_sweeps(pool: Pool) -> list[tuple[int, dict[str, Any]]]:
    with pool.connection() as conn:
        return sweep_stopping.open_sweeps(conn)


def _judge(pool: Pool, sweep_id: int, body: dict[str, Any]) -> None:
    rule = EarlyStopping.model_validate(body)
    with pool.connection() as conn:
        contenders = sweep_stopping.contenders(conn, sweep_id)
        reasons = hopeless(contenders, sweep_stopping.losses(conn, sweep_id, rule.after_steps), rule)
        for contender in contenders:
            reason = reasons.get(setting_of(contender))
            if reason is not None and contender.may_be_stopped:
                _stop(conn, contender.job_id, sweep_id, reason)


def _stop(conn: Connection[Any], job_id: int, sweep_id: int, reason: str) -> None:
    with conn.transaction():
        state = jobs.lock(conn, job_id)
        if state is None or state.terminal or not sweep_stopping.mark(conn, sweep_id, job_id, reason):
            return
        jobs.request_cancel(conn, job_id)
    _log.info("sweep_member_stopped", sweep=sweep_id, job=job_id, reason=reason)


def setting_of(contender: Contender) -> Setting:
    return contender.variant, contender.setting


def hopeless(
    contenders: Sequence[Contender], losses: Mapping[int, Mapping[int, float]], rule: EarlyStopping
) -> dict[Setting, str]:
    """Why settings are given up; ``losses`` are validation losses in nats by job, then by step.

    A member that diverged gives up its setting too: without one of its seeds it cannot become the best.
    """
    reasons: dict[Setting, str] = {}
    for contender in contenders:
        if contender.error_code == ErrorCode.DIVERGED:
            reasons.setdefault(setting_of(contender), f"seed {contender.seed} diverged")
    for step in sorted(rule.after_steps):
        for variant in dict.fromkeys(each.variant for each in contenders):
            by_setting: dict[Setting, list[float]] = {}
            for each in contenders:
                loss = losses.get(each.job_id, {}).get(step)
                if each.variant == variant and loss is not None and math.isfinite(loss):
                    by_setting.setdefault(setting_of(each), []).append(loss)
            means = {setting: statistics.fmean(found) for setting, found in by_setting.items()}
            for setting, reason in _worse(means, step, rule).items():
                reasons.setdefault(setting, reason)
    return reasons


def _worse(means: Mapping[Setting, float], step: int, rule: EarlyStopping) -> dict[Setting, str]:
    """Settings of one variant that a rule gives up at this step."""
    if not means:
        return {}
    ranked = sorted(means, key=lambda setting: means[setting])
    best = means[ranked[0]]
    kept = len(ranked) if rule.keep_fraction is None else math.ceil(rule.keep_fraction * len(ranked))
    reasons = {}
    for rank, setting in enumerate(ranked, start=1):
        loss = means[setting]
        compared = f"validation loss {loss:.4f} nats at step {step}, {loss - best:.4f} above the best"
        if rule.worse_by_nats is not None and loss - best > rule.worse_by_nats:
            reasons[setting] = f"{compared}, more than worse_by_nats {rule.worse_by_nats:g}"
        elif rank > kept:
            reasons[setting] = f"{compared}: number {rank} of {len(ranked)} settings, of which {kept} go on"
    return reasons


FOLLOWER = Follower("early stopping of sweeps", look)
