"""The two objects of the Python client: ``Keyhole``, one API, and ``Job``, one job of it."""

import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from services.client import events as client_events
from services.client import tables as client_tables
from services.client.connection import Connection
from services.client.local_paths import absolute_source
from services.client.progress import Bar
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.jobs import (
    EventView,
    JobDetail,
    JobPage,
    JobView,
    KindView,
    SummaryRow,
    TokenCreated,
    TokenView,
)
from services.contracts.kinds import kind_named
from services.contracts.states import JobState, Scope

if TYPE_CHECKING:
    import pandas
    import pyarrow


class JobFailed(KeyholeError):
    """The job failed; ``traceback`` is where, as the worker saw it."""

    def __init__(self, job: JobDetail) -> None:
        error = job.error
        super().__init__(
            error.code if error else ErrorCode.UNEXPECTED,
            f"Job {job.id} failed: {error.message if error else 'no error was stored'}",
            error.hint if error else "",
        )
        self.job = job
        self.traceback = error.traceback if error else None


class JobCancelled(KeyholeError):
    def __init__(self, job: JobDetail) -> None:
        super().__init__(
            ErrorCode.CONFLICT, f"Job {job.id} was cancelled.", f"Queue it again with: keyhole retry {job.id}"
        )
        self.job = job


class Keyhole:
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
    ) -> "Job":
        """Submit a job, or find the one that answers already (``job.reused``).

        A lost answer is asked for again under the same idempotency key, so that it cannot make two jobs.
        """
        sources = {"model": absolute_source(model), "dataset": absolute_source(dataset)}
        body: dict[str, Any] = {"kind": kind, **sources, "parameters": parameters}
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

    def job(self, job_id: int) -> "Job":
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
        parameters: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
        left = limit
        while left is None or left > 0:
            answer = self._connection.request("GET", "/v1/jobs", params={**parameters, "limit": min(left or 200, 200)})
            page = JobPage.model_validate_json(answer.content)
            yield from page.items
            if page.next is None:
                return
            parameters["cursor"] = page.next
            left = left - len(page.items) if left is not None else None

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


class Job:
    """One job, as it was when last looked at: ``refresh()`` looks again, ``wait()`` until it has ended."""

    def __init__(self, connection: Connection, detail: JobDetail) -> None:
        self._connection = connection
        self.detail = detail

    @property
    def reused(self) -> bool:
        """Whether the submission was answered by a job that stood already."""
        return self.detail.reused

    @property
    def id(self) -> int:
        return self.detail.id

    @property
    def state(self) -> JobState:
        return self.detail.state

    def __repr__(self) -> str:
        progress = self.detail.progress
        return (
            f"<Job {self.id} {self.detail.kind} {self.state}, {progress.shards_done}/{progress.shards} shards, "
            f"{progress.rows:,} rows, {self.detail.model} on {self.detail.dataset}>"
        )

    def refresh(self) -> Self:
        fresh = client_events.job(self._connection, self.id)
        self.detail = fresh.model_copy(update={"reused": self.reused})
        return self

    def wait(self, *, progress: bool = True) -> Self:
        """Wait until the job has succeeded, with a progress bar in a notebook or on a terminal.

        Raises JobFailed or JobCancelled, and Unreachable when the API is away for a minute.
        """
        with Bar(self.detail, shown=progress) as bar:
            for event in self.events():
                bar.tell(event)
            bar.finish(self.refresh().detail)
        if self.state is JobState.FAILED:
            raise JobFailed(self.detail)
        if self.state is JobState.CANCELLED:
            raise JobCancelled(self.detail)
        return self

    def events(self, after: int = 0) -> Iterator[EventView]:
        """The job's history from the start, and what happens until it has ended."""
        return client_events.follow(self._connection, self.id, after)

    def history(self, after: int = 0) -> list[EventView]:
        """The job's history so far."""
        return list(client_events.listed(self._connection, self.id, after))

    def cancel(self) -> Self:
        return self._post("cancel")

    def retry(self) -> Self:
        return self._post("retry")

    def delete(self) -> None:
        """Delete the job, which must have ended, and all of its rows."""
        self._connection.request("DELETE", f"/v1/jobs/{self.id}")

    @overload
    def frame(
        self,
        table: str | None = None,
        *,
        columns: Sequence[str] | None = None,
        layer: int | None = None,
        head: int | None = None,
        arrow: Literal[False] = False,
    ) -> "pandas.DataFrame": ...
    @overload
    def frame(
        self,
        table: str | None = None,
        *,
        columns: Sequence[str] | None = None,
        layer: int | None = None,
        head: int | None = None,
        arrow: Literal[True],
    ) -> "pyarrow.Table": ...
    def frame(
        self,
        table: str | None = None,
        *,
        columns: Sequence[str] | None = None,
        layer: int | None = None,
        head: int | None = None,
        arrow: bool = False,
    ) -> "pandas.DataFrame | pyarrow.Table":
        """The rows of one table that the job measured: all, or some columns, of one layer or head if asked.

        The table "token" has the token, its text and its document at every (sequence, position), to be joined to
        (sequence, query).
        """
        name = table or self.tables()[0]
        with client_tables.opened(self._connection, self.id, name, columns=columns, layer=layer, head=head) as body:
            found = client_tables.read_all(body)
        return found if arrow else found.to_pandas()

    def tables(self) -> list[str]:
        """Names of the tables that this kind of job fills."""
        return [table.name for table in kind_named(self.detail.kind).tables]

    def summary(
        self, metric: str | None = None, level: Literal["head", "layer", "job"] | None = None
    ) -> "pandas.DataFrame":
        """Stored distributions by head, by layer and for the whole model; one row each."""
        import pandas

        rows = [row.model_dump() for row in self.summary_rows(metric, level)]
        return pandas.DataFrame(rows, columns=pandas.Index(list(SummaryRow.model_fields)))

    def summary_rows(self, metric: str | None = None, level: str | None = None) -> list[SummaryRow]:
        wanted = {"metric": metric, "level": level}
        answer = self._connection.request(
            "GET", f"/v1/jobs/{self.id}/summary", params={name: value for name, value in wanted.items() if value}
        )
        return [SummaryRow.model_validate(item) for item in answer.json()]

    def export(self, folder: str | Path) -> Path:
        """Write each table as Parquet below ``folder``, with a manifest; returns the manifest's path."""
        from services.client.export import export  # here: pyarrow takes half a second to import

        return export(self._connection, self, Path(folder))

    def _post(self, action: str) -> Self:
        answer = self._connection.request("POST", f"/v1/jobs/{self.id}/{action}")
        self.detail = JobDetail.model_validate_json(answer.content)
        return self
