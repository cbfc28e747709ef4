"""Rows of alerts and watches as the API answers them."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from db.repositories.alerts import AlertRow
from db.repositories.watches import WatchRow
from services.contracts.rule_texts import written
from services.contracts.rules import AnyRule, Rule
from services.contracts.watches import AlertView, RuleView, WatchView, parse_target

_RULE: TypeAdapter[AnyRule] = TypeAdapter(Rule)


def alert_view(row: AlertRow) -> AlertView:
    return AlertView(
        watch=row.watch_name,
        rule_text=written(_RULE.validate_python(row.rules[row.rule])),
        **{name: getattr(row, name) for name in AlertView.model_fields if name not in ("watch", "rule_text")},
    )


def watch_view(row: WatchRow, by_rule: Mapping[tuple[int, int], tuple[int, int]]) -> WatchView:
    """``by_rule`` has, by watch and rule, alerts raised and places where it is met now."""
    body = row.body
    rules = []
    for number, rule in enumerate(body.get("rules", [])):
        raised, met_at = by_rule.get((row.id, number), (0, 0))
        rules.append(RuleView(text=written(_RULE.validate_python(rule)), rule=rule, alerts=raised, met_at=met_at))
    webhook = body.get("webhook")
    return WatchView(
        id=row.id,
        name=row.name,
        target=row.target,
        active=row.active,
        ended=row.ended,
        problem=row.problem,
        probes=kinds_of(body),
        dataset=body.get("dataset"),
        rules=rules,
        models=row.models,
        models_judged=row.models_judged,
        models_failed=row.models_failed,
        alerts=row.alerts,
        unacknowledged=row.unacknowledged,
        webhook_host=urlsplit(webhook).netloc if webhook else None,
        poll_s=None if parse_target(row.target).of_runs else body.get("poll_s"),
        submitted_by=row.submitted_by_name,
        created_at=row.created_at,
        looked_at=row.looked_at,
    )


def kinds_of(body: Mapping[str, object]) -> list[str]:
    """Kinds of a watch's probes, as stored at its submission."""
    kinds = body.get("kinds")
    return list(kinds) if isinstance(kinds, list) else []
