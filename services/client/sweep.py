"""``Sweep``: one training in several settings, with several variants and seeds, from Python."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from services.client.connection import Connection
from services.client.local_paths import absolute_source, absolute_sources
from services.client.pages import items
from services.client.suite import Suite
from services.contracts.suites import SuiteDetail
from services.contracts.sweeps import SweepDetail, SweepPage, SweepView

if TYPE_CHECKING:
    import pandas


class Sweep:
    """One sweep, as it was when last looked at: ``refresh()`` looks again, ``wait()`` until all has ended."""

    def __init__(self, connection: Connection, detail: SweepDetail) -> None:
        self._connection = connection
        self.detail = detail

    @property
    def id(self) -> int:
        return self.detail.id

    def __repr__(self) -> str:
        states = ", ".join(f"{number} {state}" for state, number in self.detail.jobs_by_state.items())
        return f"<Sweep {self.id} {self.detail.name!r}: {states}>"

    @property
    def suite(self) -> Suite:
        """The suite whose first stage its jobs are."""
        answer = self._connection.request("GET", f"/v1/suites/{self.detail.suite_id}")
        return Suite(self._connection, SuiteDetail.model_validate_json(answer.content))

    def refresh(self) -> Self:
        answer = self._connection.request("GET", f"/v1/sweeps/{self.id}")
        self.detail = SweepDetail.model_validate_json(answer.content)
        return self

    def wait(self, *, progress: bool = True) -> Self:
        """Wait until every member, and every stage after them, has ended; what failed is in ``detail.members``."""
        self.suite.wait_for_end(progress=progress)
        return self.refresh()

    def cancel(self) -> Self:
        """Stop the members that have not ended, but for those that stood before the sweep."""
        self.suite.cancel()
        return self.refresh()

    def members(self) -> "pandas.DataFrame":
        """One row for each member; the values on the axes are columns of their own."""
        import pandas

        rows = [{**each.model_dump(exclude={"setting"}), **each.setting} for each in self.detail.members]
        return pandas.DataFrame(rows)

    def settings(self) -> "pandas.DataFrame":
        """One row for each setting of a variant: mean and standard deviation of final losses over its seeds."""
        import pandas

        rows = [{**each.model_dump(exclude={"setting"}), **each.setting} for each in self.detail.settings]
        return pandas.DataFrame(rows)


class SweepCalls:
    """What ``Keyhole`` asks about sweeps."""

    _connection: Connection

    def sweep(
        self,
        *,
        model: str,
        dataset: str,
        axes: Mapping[str, Sequence[Any] | Mapping[str, Any]] | None = None,
        variants: Sequence[Any] = ("control",),
        seeds: Sequence[int] = (0,),
        random: int | None = None,
        search_seed: int = 0,
        early_stopping: Mapping[str, Any] | None = None,
        stages: Sequence[Mapping[str, Any]] = (),
        label: str | None = None,
        priority: int = 0,
        force: bool = False,
        time_limit_s: int | None = None,
        idempotency_key: str | None = None,
        **parameters: Any,
    ) -> Sweep:
        """Submit a sweep of training jobs; all are made, or none.

        ``axes`` are values by parameter, such as ``{"optimizer.learning_rate": [1e-3, 3e-3]}``; every combination is
        trained, or with ``random`` so many of them, where an axis may also be ``{"low": 1e-4, "high": 1e-2}``.
        ``variants`` are names, names joined by +, or lists with options; ``parameters`` hold for all members.
        """
        body: dict[str, Any] = {
            "model": absolute_source(model),
            "dataset": absolute_source(dataset),
            "parameters": absolute_sources(parameters),
            "axes": absolute_sources(dict(axes or {})),
            "variants": list(variants),
            "seeds": list(seeds),
            "search": "grid" if random is None else "random",
            "samples": random,
            "search_seed": search_seed,
            "early_stopping": early_stopping,
            "stages": absolute_sources(list(stages)),
            "name": label,
            "priority": priority,
            "force": force,
        }
        if time_limit_s is not None:
            body["time_limit_s"] = time_limit_s
        answer = self._connection.request(
            "POST",
            "/v1/sweeps",
            json=body,
            headers={"Idempotency-Key": idempotency_key or uuid.uuid4().hex},
            repeatable=True,
            timeout=180.0,
        )
        return Sweep(self._connection, SweepDetail.model_validate_json(answer.content))

    def sweep_result(self, sweep_id: int) -> Sweep:
        """The sweep of that number, with its result so far; raises KeyholeError (not_found)."""
        answer = self._connection.request("GET", f"/v1/sweeps/{sweep_id}")
        return Sweep(self._connection, SweepDetail.model_validate_json(answer.content))

    def sweeps(self, *, text: str | None = None, limit: int | None = None) -> Iterator[SweepView]:
        """Sweeps whose name holds the text, newest first, fetched page by page; at most ``limit``."""
        return items(self._connection, "/v1/sweeps", SweepPage, {"q": text}, limit)
