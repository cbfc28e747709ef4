"""``Keyhole``: one API, from Python."""

import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from services.client import events as client_events
from services.client import tables as client_tables
from services.client.checkpoint import CheckpointCalls
from services.client.connection import Connection
from services.client.job import Job
from services.client.local_paths import absolute_source, absolute_sources
from services.client.pages import items
from services.client.run import RunCalls
from services.client.suite import Suite, probe_items
from services.client.sweep import SweepCalls
from services.client.watch import WatchCalls
from services.contracts.jobs import JobDetail, JobPage, JobView, KindView, TokenCreated, TokenView
from services.contracts.states import Scope
from services.contracts.suites import Preset, SuiteDetail, SuitePage, SuiteView

if TYPE_CHECKING:
    import pandas
    import pyarrow


class Keyhole(CheckpointCalls, RunCalls, SweepCalls, WatchCalls):
    """A client of one API. Without arguments: KEYHOLE_API_URL and KEYHOLE_TOKEN, else the embedded stack."""

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        self._connection = Connection(url, token)
        self.url = self._connection.url

    def __repr__(self) -> str:
        return f"Keyhole({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def submit(
        self,
        kind: str,
        *,
        model: str,
        dataset: str,
        priority: int = 0,
        force: bool = False,
        label: str | None = None,
        time_limit_s: int | None = None,
        idempotency_key: str | None = None,
        **parameters: Any,
    ) -> Job:
        """Submit a job, or find the one that answers already (``job.reused``).

        A lost answer is asked for again under the same idempotency key, so that it cannot make two jobs.
        """
        sources = {"model": absolute_source(model), "dataset": absolute_source(dataset)}
        body: dict[str, Any] = {"kind": kind, **sources, "parameters": absolute_sources(parameters)}
        body |= {"priority": priority, "force": force, "label": label}
        if time_limit_s is not None:
            body["time_limit_s"] = time_limit_s
        answer = self._connection.request(
            "POST",
            "/v1/jobs",
            json=body,
            headers={"Idempotency-Key": idempotency_key or uuid.uuid4().hex},
            repeatable=True,
            timeout=180.0,  # sources are resolved: the built-in model is unpacked, a hub may be slow
        )
        detail = JobDetail.model_validate_json(answer.content)
        return Job(self._connection, detail)

    def job(self, job_id: int) -> Job:
        """The job of that number; raises KeyholeError (not_found)."""
        return Job(self._connection, client_events.job(self._connection, job_id))

    def jobs(
        self,
        *,
        kind: str | Sequence[str] | None = None,
        state: str | Sequence[str] | None = None,
        model: str | None = None,
        dataset: str | None = None,
        label: str | None = None,
        text: str | None = None,
        submitted_by: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int | None = None,
    ) -> Iterator[JobView]:
        """Jobs that match, newest first, fetched page by page; at most ``limit``."""
        filters = {
            "kind": kind,
            "state": state,
            "model": model,
            "dataset": dataset,
            "label": label,
            "q": text,
            "submitted_by": submitted_by,
            "created_after": created_after.isoformat() if created_after else None,
            "created_before": created_before.isoformat() if created_before else None,
        }
        return items(self._connection, "/v1/jobs", JobPage, filters, limit)

    def submit_suite(
        self,
        preset: str | None = None,
        *,
        model: str | Sequence[str] = (),
        dataset: str | None = None,
        probes: Mapping[str, Mapping[str, Any]] | Sequence[str] | Sequence[Mapping[str, Any]] = (),
        stages: Sequence[Mapping[str, Any]] = (),
        label: str | None = None,
        priority: int = 0,
        force: bool = False,
        time_limit_s: int | None = None,
        **parameters: Any,
    ) -> Suite:
        """Submit a preset, or probes of one's own, on one model or several; all jobs are made, or none.

        ``probes`` are kinds, or kinds with their parameters, or the API's items (``{"kind": …, "parameters": …}``,
        also with ``model``, ``dataset`` and ``label``). ``stages`` follow in turn, each with probes as items, and with
        models, such as ``runs@last`` for the ends of the runs that the suite has trained. A ``model`` may be a series:
        ``hf:ORG/NAME@step*``, ``path:DIR/*``, ``run:ID``. ``parameters`` hold for every probe that has them, below the
        name of a kind for that alone.
        """
        body: dict[str, Any] = {
            "preset": preset,
            "models": [absolute_source(each) for each in ([model] if isinstance(model, str) else model)],
            "dataset": absolute_source(dataset) if dataset else None,
            "probes": absolute_sources(probe_items(probes)),
            "stages": absolute_sources(list(stages)),
            "parameters": absolute_sources(parameters),
            "name": label,
            "priority": priority,
            "force": force,
        }
        if time_limit_s is not None:
            body["time_limit_s"] = time_limit_s
        answer = self._connection.request("POST", "/v1/suites", json=body, timeout=600.0)  # a hub, many revisions
        return Suite(self._connection, SuiteDetail.model_validate_json(answer.content))

    def suite(self, suite_id: int) -> Suite:
        """The suite of that number; raises KeyholeError (not_found)."""
        answer = self._connection.request("GET", f"/v1/suites/{suite_id}")
        return Suite(self._connection, SuiteDetail.model_validate_json(answer.content))

    def suites(self, *, text: str | None = None, limit: int | None = None) -> Iterator[SuiteView]:
        """Suites whose name holds the text, newest first, fetched page by page; at most ``limit``."""
        return items(self._connection, "/v1/suites", SuitePage, {"q": text}, limit)

    def presets(self) -> list[Preset]:
        """The named suites, with all their settings."""
        return [Preset.model_validate(item) for item in self._connection.request("GET", "/v1/presets").json()]

    def kinds(self) -> list[KindView]:
        """The kinds of job, with the JSON schema and the defaults of their parameters."""
        return [KindView.model_validate(item) for item in self._connection.request("GET", "/v1/kinds").json()]

    @overload
    def sql(self, query: str, *, limit: int | None = None, arrow: Literal[False] = False) -> "pandas.DataFrame": ...
    @overload
    def sql(self, query: str, *, limit: int | None = None, arrow: Literal[True]) -> "pyarrow.Table": ...
    def sql(self, query: str, *, limit: int | None = None, arrow: bool = False) -> "pandas.DataFrame | pyarrow.Table":
        """The answer to one SQL statement, run as the read-only role; warns when the row limit cut it."""
        with self.sql_stream(query, "arrow", limit=limit) as answer:
            table = client_tables.read_all(answer)
            if answer.truncated:
                warnings.warn(f"The row limit cut the answer after {table.num_rows} rows.", stacklevel=2)
        return table if arrow else table.to_pandas()

    @contextmanager
    def sql_stream(
        self, query: str, format: Literal["json", "csv", "arrow", "parquet"], *, limit: int | None = None
    ) -> Iterator[client_tables.Body]:
        """The same answer as a file of bytes in one of the formats; ``truncated`` tells whether a limit cut it."""
        body = {"sql": query, "limit": limit}
        with self._connection.stream("POST", "/v1/sql", params={"format": format}, json=body) as response:
            yield client_tables.Body(response)

    def tokens(self) -> list[TokenView]:
        return [TokenView.model_validate(item) for item in self._connection.request("GET", "/v1/tokens").json()]

    def create_token(
        self, name: str, scope: Scope | str = Scope.SUBMIT, expires_in_days: int | None = None
    ) -> TokenCreated:
        body = {"name": name, "scope": str(scope), "expires_in_days": expires_in_days}
        return TokenCreated.model_validate_json(self._connection.request("POST", "/v1/tokens", json=body).content)

    def revoke_token(self, token_id: int) -> None:
        self._connection.request("DELETE", f"/v1/tokens/{token_id}", repeatable=True)
