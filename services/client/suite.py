"""``Suite``: jobs that were submitted together, from Python."""

import sys
import time
from collections.abc import Callable
from typing import Self

from services.client import events as client_events
from services.client.connection import Connection
from services.client.job import Job
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.states import JobState
from services.contracts.suites import SuiteDetail

_POLL_S = 1.0


class SuiteFailed(KeyholeError):
    """Some jobs of the suite did not succeed; the others did. ``suite`` tells which."""

    def __init__(self, suite: SuiteDetail) -> None:
        self.suite = suite
        bad = [job for job in suite.members if job.state is not JobState.SUCCEEDED]
        told = "; ".join(f"job {job.id} ({job.kind}): {job.error.message if job.error else job.state}" for job in bad)
        super().__init__(
            ErrorCode.CONFLICT,
            f"{len(bad)} of {len(suite.members)} jobs of suite {suite.id} did not succeed: {told}",
            "Look at one with: keyhole job ID   Try it again with: keyhole retry ID",
        )


class Suite:
    """One suite, as it was when last looked at: ``refresh()`` looks again, ``wait()`` until all jobs have ended."""

    def __init__(self, connection: Connection, detail: SuiteDetail) -> None:
        self._connection = connection
        self.detail = detail

    @property
    def id(self) -> int:
        return self.detail.id

    def __repr__(self) -> str:
        states = ", ".join(f"{number} {state}" for state, number in self.detail.jobs_by_state.items())
        return f"<Suite {self.id} {self.detail.name!r}: {states}>"

    def job(self, kind: str, model: str | None = None) -> Job:
        """The suite's job of that kind, and of that model (a part of its source) if there are several."""
        found = [job.id for job in self.detail.members if job.kind == kind and (model is None or model in job.model)]
        if len(found) != 1:
            raise KeyholeError(
                ErrorCode.NOT_FOUND,
                f"Suite {self.id} has {len(found)} jobs of kind {kind!r}" + (f" on {model!r}." if model else "."),
                "Its jobs are in `detail.members`.",
            )
        return Job(self._connection, client_events.job(self._connection, found[0]))

    def refresh(self) -> Self:
        answer = self._connection.request("GET", f"/v1/suites/{self.id}")
        self.detail = SuiteDetail.model_validate_json(answer.content)
        return self

    def cancel(self) -> Self:
        """Stop the jobs that have not ended, but for those that stood before the suite."""
        answer = self._connection.request("POST", f"/v1/suites/{self.id}/cancel")
        self.detail = SuiteDetail.model_validate_json(answer.content)
        return self

    def wait(self, *, progress: bool = True) -> Self:
        """Wait until every job has ended, with a progress bar in a notebook or on a terminal; raises SuiteFailed."""
        from tqdm.auto import tqdm  # here: its import takes a while in notebooks

        shown = progress and ("ipykernel" in sys.modules or sys.stderr.isatty())
        with tqdm(total=self.detail.shards, unit="shard", disable=not shown, dynamic_ncols=True) as bar:

            def tell(detail: SuiteDetail) -> None:
                bar.total, bar.n = detail.shards, detail.shards_done
                now = [f"{job.kind} {job.progress.phase}" for job in detail.members if job.state is JobState.RUNNING]
                bar.set_description_str(f"suite {detail.id} {', '.join(now[:3]) or 'waits'}", refresh=True)

            self.follow(tell)
        if any(job.state is not JobState.SUCCEEDED for job in self.detail.members):
            raise SuiteFailed(self.detail)
        return self

    def follow(self, tell: Callable[[SuiteDetail], None]) -> None:
        """Look every second and tell what there is, until every job has ended."""
        tell(self.refresh().detail)
        while not self.detail.ended:
            time.sleep(_POLL_S)
            tell(self.refresh().detail)
