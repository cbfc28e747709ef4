"""``Run``: one training run of an API, from Python."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, Self

from services.client import events as client_events
from services.client import tables as client_tables
from services.client.connection import Connection
from services.client.job import Job
from services.client.pages import items
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.runs import RunDetail, RunPage, RunView

if TYPE_CHECKING:
    import pandas


class Run:
    """One run, as it was when last looked at: ``refresh()`` looks again, ``job`` is what trains it."""

    def __init__(self, connection: Connection, detail: RunDetail) -> None:
        self._connection = connection
        self.detail = detail

    @property
    def id(self) -> int:
        return self.detail.id

    def __repr__(self) -> str:
        detail = self.detail
        loss = detail.last_validation_loss_nats
        told = "" if loss is None else f", {loss:.4f} nats at step {detail.last_validation_step}"
        return f"<Run {self.id} {detail.name!r} {detail.state}, {detail.steps_done}/{detail.steps} steps{told}>"

    @property
    def job(self) -> Job:
        """The training job; raises KeyholeError (not_found) for an imported run."""
        if self.detail.job_id is None:
            raise KeyholeError(
                ErrorCode.NOT_FOUND,
                f"Run {self.id} was imported; no job trained it.",
                "Its checkpoints are in `detail.checkpoints`.",
            )
        return Job(self._connection, client_events.job(self._connection, self.detail.job_id))

    def source(self, place: int | Literal["first", "last", "best"] = "last") -> str:
        """The model source of one of its checkpoints, by step or place."""
        return f"run:{self.id}@{place}"

    def refresh(self) -> Self:
        answer = self._connection.request("GET", f"/v1/runs/{self.id}")
        self.detail = RunDetail.model_validate_json(answer.content)
        return self

    def metrics(self, metric: str | Sequence[str] | None = None) -> "pandas.DataFrame":
        """Numbers by step in long form: step, metric, layer, head, value; all of them, or those of these names."""
        names = [metric] if isinstance(metric, str) else list(metric or ())
        return self._frame("metrics", {"metric": names} if names else {})

    def curve(self, metric: str = "validation_loss_nats") -> "pandas.Series":
        """One number of the whole model by step."""
        rows = self.metrics(metric)
        rows = rows[rows["layer"].isna() & rows["head"].isna()]
        return rows.set_index("step")["value"].rename(metric)

    def matrices(self) -> "pandas.DataFrame":
        """Spectral norms of the weight matrices and of their updates, by layer, matrix and step."""
        return self._frame("matrices", {})

    @contextmanager
    def metrics_file(
        self, format: Literal["json", "csv", "arrow", "parquet"], names: Sequence[str] = ()
    ) -> Iterator[client_tables.Body]:
        """The same numbers as a file of bytes."""
        query = {"format": format, **({"metric": list(names)} if names else {})}
        with self._connection.stream("GET", f"/v1/runs/{self.id}/metrics", params=query) as response:
            yield client_tables.Body(response)

    def _frame(self, what: str, parameters: dict[str, list[str]]) -> "pandas.DataFrame":
        query = {"format": "arrow", **parameters}
        with self._connection.stream("GET", f"/v1/runs/{self.id}/{what}", params=query) as response:
            return client_tables.read_all(client_tables.Body(response)).to_pandas()


class RunCalls:
    """What ``Keyhole`` asks about runs."""

    _connection: Connection

    def run(self, run_id: int) -> Run:
        """The training run of that number; raises KeyholeError (not_found)."""
        answer = self._connection.request("GET", f"/v1/runs/{run_id}")
        return Run(self._connection, RunDetail.model_validate_json(answer.content))

    def runs(
        self,
        *,
        text: str | None = None,
        variant: str | Sequence[str] | None = None,
        state: str | Sequence[str] | None = None,
        seed: int | None = None,
        suite: int | None = None,
        sweep: int | None = None,
        limit: int | None = None,
    ) -> Iterator[RunView]:
        """Runs that match, newest first, fetched page by page; at most ``limit``."""
        filters = {"q": text, "variant": variant, "state": state, "seed": seed, "suite": suite, "sweep": sweep}
        return items(self._connection, "/v1/runs", RunPage, filters, limit)
