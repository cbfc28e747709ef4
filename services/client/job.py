"""``Job``: one job of an API, from Python."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, overload

from services.client import events as client_events
from services.client import tables as client_tables
from services.client.connection import Connection
from services.client.progress import Bar
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.jobs import EventView, JobDetail, SummaryRow
from services.contracts.kinds import kind_named
from services.contracts.states import JobState

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
