"""The rules of a watch applied to what has come back since the last look: finished probes, new numbers of runs.

One transaction that holds the watch's row reads, raises alerts and stores how far it got, so that neither a crash nor
a second process raises anything twice or skips it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from psycopg import Connection
from psycopg_pool import ConnectionPool
from pydantic import TypeAdapter

from db.repositories import alerts, watch_models, watch_rules, watch_targets, watches
from db.repositories.alerts import NewAlert
from db.repositories.watch_models import SeenModel, SuiteJob
from db.repositories.watch_rules import Place, Remembered
from db.repositories.watches import WatchRow
from services.api import crossings, readings
from services.api.crossings import Raised, Reading
from services.contracts.rule_texts import written
from services.contracts.rules import TRAINING, AnyRule, Rule, SigmaRule
from services.contracts.states import JobState
from services.contracts.watches import Target, parse_target

_RULES: TypeAdapter[list[AnyRule]] = TypeAdapter(list[Rule])
_BEFORE_THE_FIRST_STEP = -1


def rules_of(body: dict[str, Any]) -> list[AnyRule]:
    return _RULES.validate_python(body.get("rules", []))


def judge(pool: ConnectionPool[Connection[Any]], watch: WatchRow) -> None:
    """Apply the watch's rules; end the watch if nothing more is to come. Nothing happens if another process does it."""
    with pool.connection() as conn, conn.transaction():
        if watches.lock(conn, watch.id, skip=True):
            _Judgement(conn, watch).run()


@dataclass(frozen=True)
class _Subject:
    """What numbers are about."""

    run_id: int | None
    job_id: int | None = None
    source: str | None = None


class _Judgement:
    """One look of one watch."""

    def __init__(self, conn: Connection[Any], watch: WatchRow) -> None:
        self._conn = conn
        self._watch = watch
        self._target: Target = parse_target(watch.target)
        self._rules = list(enumerate(rules_of(watch.body)))
        self._met_at = watch_rules.met_at(conn, watch.id)

    def run(self) -> None:
        over = self._nothing_new_to_come()  # asked first: what comes until the reading below is then read
        self._judge_probes()
        self._judge_training()
        if over is not None and not watch_models.any_waiting(self._conn, self._watch.id):
            watches.end(self._conn, self._watch.id, over)

    def _nothing_new_to_come(self) -> str | None:
        """Why no checkpoint can follow those that were seen; None if one can."""
        until = self._watch.body.get("until")
        if until is not None and datetime.fromisoformat(until) <= datetime.now(UTC):
            return "its time is over"
        number = self._target.number
        if number is None:
            return None
        watch_targets.join_runs(self._conn, self._watch.id, self._target.form, number)
        if not watch_targets.all_ended(self._conn, self._watch.id, self._target.form, number):
            return None
        unseen = watch_targets.unseen_checkpoints(self._conn, self._watch.id, 1) if measures(self._watch.body) else []
        return None if unseen else watches.ENDED_WITH_RUNS

    def _judge_probes(self) -> None:
        models = watch_models.unjudged(self._conn, self._watch.id)
        by_suite: dict[int, list[SuiteJob]] = {}
        for job in watch_models.jobs_of(self._conn, [model.suite_id for model in models]):
            by_suite.setdefault(job.suite_id, []).append(job)
        for model in models:
            self._judge_model(model, by_suite.get(model.suite_id, []))

    def _judge_model(self, model: SeenModel, jobs: Sequence[SuiteJob]) -> None:
        done = list(model.judged_jobs)
        for job in jobs:
            if job.state != JobState.SUCCEEDED or job.job_id in done:
                continue
            subject = _Subject(model.run_id, job.job_id, model.source)
            for number, rule in self._rules:
                if rule.origin() == job.kind:
                    rows = readings.of_job(self._conn, job.job_id, model.step, rule)
                    self._apply(number, rule, subject, rows)
            done.append(job.job_id)
        missing = [job for job in jobs if job.state in (JobState.FAILED, JobState.CANCELLED)]
        problem = "; ".join(
            f"job {job.job_id} ({job.kind}) {job.state}" + (f": {job.error_message}" if job.error_message else "")
            for job in missing
        )
        judged = all(JobState(job.state).terminal for job in jobs)
        watch_models.set_judged(
            self._conn, self._watch.id, model.source, done, judged=judged, problem=problem[:1000] or None
        )

    def _judge_training(self) -> None:
        chosen = [(number, rule) for number, rule in self._rules if rule.origin() == TRAINING]
        if not chosen:
            return
        known = watch_rules.remembered(self._conn, self._watch.id)
        for run_id in watch_targets.runs(self._conn, self._watch.id):
            for number, rule in chosen:
                before = known.get((number, run_id), Remembered(_BEFORE_THE_FIRST_STEP, {}))
                found = readings.of_run(self._conn, run_id, before.step, rule, before.memory)
                if found.last_step is not None:
                    self._apply(number, rule, _Subject(run_id), found.rows)
                    now = Remembered(found.last_step, found.memory)
                    watch_rules.remember(self._conn, self._watch.id, number, run_id, now)

    def _apply(self, number: int, rule: AnyRule, subject: _Subject, rows: Sequence[Reading]) -> None:
        met_at = self._met_at.setdefault((number, subject.run_id), set())
        outcome = crossings.judge(rows, met_at, below=readings.below(rule))
        watch_rules.recovered(self._conn, self._watch.id, number, subject.run_id, outcome.recovered)
        places = {place: (each.step, each.value) for place, each in outcome.met.items()}
        watch_rules.met(self._conn, self._watch.id, number, subject.run_id, places)
        met_at.difference_update(outcome.recovered)
        met_at.update(outcome.met)
        raised = [_alert(self._watch.id, number, rule, subject, each) for each in outcome.raised]
        alerts.insert(self._conn, raised, deliver=bool(self._watch.body.get("webhook")))


def measures(body: dict[str, Any]) -> bool:
    """Whether a watch submits probes, rather than only looking at numbers of the training."""
    return bool(body.get("preset") or body.get("probes"))


def _alert(watch_id: int, number: int, rule: AnyRule, subject: _Subject, raised: Raised) -> NewAlert:
    reading = raised.reading
    metric = rule.metric.removeprefix("log10_") if isinstance(rule, SigmaRule) else rule.metric
    return NewAlert(
        watch_id=watch_id,
        rule=number,
        run_id=subject.run_id,
        job_id=subject.job_id,
        source=subject.source,
        step=reading.step,
        metric=metric,
        matrix=reading.place.matrix,
        layer=reading.place.layer,
        head=reading.place.head,
        value=reading.value,
        threshold=reading.limit,
        others=raised.others,
        message=_message(metric, rule, raised),
    )


def _message(metric: str, rule: AnyRule, raised: Raised) -> str:
    reading = raised.reading
    step = "" if reading.step is None else f" at step {reading.step:,}"
    told = f", {reading.told}" if reading.told else ""
    others = f"; and at {raised.others:,} more places" if raised.others else ""
    return f"{metric}{_of(reading.place)} is {reading.value:.4g}{step}{told}. Rule: {written(rule)}{others}."


def _of(place: Place) -> str:
    named = [("matrix", place.matrix), ("layer", place.layer), ("head", place.head)]
    told = " ".join(f"{name} {value}" for name, value in named if value is not None)
    return f" of {told}" if told else ""
