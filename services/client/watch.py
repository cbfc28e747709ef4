"""``Watch``: probes of new checkpoints and rules on what comes back, from Python; and the alerts that were raised."""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Self

from services.client.connection import Connection
from services.client.local_paths import absolute_source, absolute_sources
from services.client.pages import items
from services.contracts.watches import (
    Acknowledged,
    AlertPage,
    AlertView,
    RuleGuide,
    WatchDetail,
    WatchPage,
    WatchView,
)

_POLL_S = 2.0
_AT_ONCE = 200


class Watch:
    """One watch, as it was when last looked at: ``refresh()`` looks again."""

    def __init__(self, connection: Connection, detail: WatchDetail) -> None:
        self._connection = connection
        self.detail = detail

    @property
    def id(self) -> int:
        return self.detail.id

    def __repr__(self) -> str:
        state = "looks" if self.detail.active else f"ended: {self.detail.ended}"
        return f"<Watch {self.id} {self.detail.name!r} on {self.detail.target} {state}, {self.detail.alerts} alerts>"

    def refresh(self) -> Self:
        return self._answered("GET", "")

    def stop(self) -> Self:
        """Look no longer; jobs that were submitted go on."""
        return self._answered("POST", "/stop")

    def resume(self) -> Self:
        """Look again, also at checkpoints that were given up."""
        return self._answered("POST", "/resume")

    def delete(self) -> None:
        """Delete the watch with its alerts; suites and jobs stay."""
        self._connection.request("DELETE", f"/v1/watches/{self.id}", repeatable=True)

    def alerts(self, *, limit: int | None = None) -> Iterator[AlertView]:
        """What it has raised, newest first."""
        return items(self._connection, "/v1/alerts", AlertPage, {"watch": self.id}, limit)

    def _answered(self, method: str, what: str) -> Self:
        answer = self._connection.request(method, f"/v1/watches/{self.id}{what}")
        self.detail = WatchDetail.model_validate_json(answer.content)
        return self


class WatchCalls:
    """What ``Keyhole`` asks about watches and alerts."""

    _connection: Connection

    def watch(
        self,
        target: str,
        *,
        rules: Sequence[str | Mapping[str, Any]] = (),
        preset: str | None = None,
        probes: Mapping[str, Mapping[str, Any]] | Sequence[str] = (),
        dataset: str | None = None,
        name: str | None = None,
        priority: int = 0,
        time_limit_s: int | None = None,
        existing: bool = True,
        poll_s: float | None = None,
        until: datetime | None = None,
        webhook: str | None = None,
        **parameters: Any,
    ) -> Watch:
        """Watch ``run:ID``, ``suite:ID``, ``sweep:ID``, ``path:DIR/*`` or ``hf:ORG/NAME@PATTERN``.

        ``probes`` are kinds, or kinds with their parameters. A rule is a text such as ``entropy_nats head below 0.5``,
        or an object; ``rules()`` tells what they can be about.
        """
        chosen = probes if isinstance(probes, Mapping) else {kind: {} for kind in probes}
        body: dict[str, Any] = {
            "target": absolute_source(target),
            "rules": list(rules),
            "preset": preset,
            "probes": [{"kind": kind, "parameters": absolute_sources(dict(values))} for kind, values in chosen.items()],
            "dataset": absolute_source(dataset) if dataset else None,
            "parameters": absolute_sources(parameters),
            "name": name,
            "priority": priority,
            "existing": existing,
            "until": until.isoformat() if until else None,
            "webhook": webhook,
        }
        body |= {key: value for key, value in (("time_limit_s", time_limit_s), ("poll_s", poll_s)) if value is not None}
        answer = self._connection.request("POST", "/v1/watches", json=body, timeout=180.0)  # a hub may be slow
        return Watch(self._connection, WatchDetail.model_validate_json(answer.content))

    def watch_of(self, watch_id: int) -> Watch:
        """The watch of that number; raises KeyholeError (not_found)."""
        answer = self._connection.request("GET", f"/v1/watches/{watch_id}")
        return Watch(self._connection, WatchDetail.model_validate_json(answer.content))

    def watches(
        self, *, text: str | None = None, active: bool | None = None, run: int | None = None, limit: int | None = None
    ) -> Iterator[WatchView]:
        """Watches that match, newest first; at most ``limit``."""
        return items(self._connection, "/v1/watches", WatchPage, {"q": text, "active": active, "run": run}, limit)

    def alerts(
        self,
        *,
        watch: int | None = None,
        run: int | None = None,
        job: int | None = None,
        metric: str | None = None,
        layer: int | None = None,
        head: int | None = None,
        since: datetime | None = None,
        acknowledged: bool | None = None,
        limit: int | None = None,
    ) -> Iterator[AlertView]:
        """Alerts that match, newest first; at most ``limit``."""
        filters = _filters(watch, run, job, metric, layer, head, since, acknowledged)
        return items(self._connection, "/v1/alerts", AlertPage, filters, limit)

    def follow_alerts(
        self,
        *,
        after: int | None = None,
        watch: int | None = None,
        run: int | None = None,
        metric: str | None = None,
        layer: int | None = None,
        head: int | None = None,
    ) -> Iterator[AlertView]:
        """Alerts as they are raised, without end: those after a number, or from now on; looks every two seconds."""
        filters = _filters(watch, run, None, metric, layer, head, None, None)
        if after is None:
            after = next((each.id for each in self.alerts(limit=1)), 0)
        chosen = {name: value for name, value in filters.items() if value is not None}
        while True:
            query = {**chosen, "after": after, "limit": _AT_ONCE}
            page = AlertPage.model_validate_json(self._connection.request("GET", "/v1/alerts", params=query).content)
            yield from page.items
            if page.items:
                after = page.items[-1].id
            if len(page.items) < _AT_ONCE:
                time.sleep(_POLL_S)

    def acknowledge(self, alerts: Sequence[int] = (), *, watch: int | None = None) -> int:
        """Say that alerts were seen: those of these numbers, and all of a watch so far. Returns how many were not."""
        body = {"alerts": list(alerts), "watch": watch}
        answer = self._connection.request("POST", "/v1/alerts/acknowledge", json=body, repeatable=True)
        return Acknowledged.model_validate_json(answer.content).acknowledged

    def rules(self) -> RuleGuide:
        """What rules of watches can be about, and how they are written."""
        return RuleGuide.model_validate_json(self._connection.request("GET", "/v1/rules").content)


def _filters(
    watch: int | None,
    run: int | None,
    job: int | None,
    metric: str | None,
    layer: int | None,
    head: int | None,
    since: datetime | None,
    acknowledged: bool | None,
) -> dict[str, Any]:
    return {
        "watch": watch,
        "run": run,
        "job": job,
        "metric": metric,
        "layer": layer,
        "head": head,
        "since": since.isoformat() if since else None,
        "acknowledged": acknowledged,
    }
