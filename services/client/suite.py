"""``Suite``: jobs that were submitted together, from Python."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from services.client import events as client_events
from services.client.connection import Connection
from services.client.job import Job
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.states import JobState
from services.contracts.suites import SuiteDetail

_POLL_S = 1.0


class SuiteFailed(KeyholeError):
    """Some jobs of the suite did not succeed, or a stage was skipped. ``suite`` tells which."""

    def __init__(self, suite: SuiteDetail) -> None:
        self.suite = suite
        bad = [job for job in suite.members if job.fell_short]
        told = [f"job {job.id} ({job.kind}): {job.error.message if job.error else job.state}" for job in bad]
        told += [f"stage {stage.number} was skipped: {stage.detail}" for stage in suite.skipped]
        super().__init__(
            ErrorCode.CONFLICT,
            f"{len(bad)} of {len(suite.members)} jobs of suite {suite.id} did not succeed: {'; '.join(told)}",
            "Look at one with: keyhole job ID   Try it again with: keyhole retry ID",
        )


class Suite:
    """One suite, as it was when last looked at: ``refresh()`` looks again, ``wait()`` until all stages have ended."""

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
        """Wait until every job of every stage has ended, with a progress bar in a notebook or on a terminal.

        Raises SuiteFailed.
        """
        self.wait_for_end(progress=progress)
        if self.detail.skipped or any(job.fell_short for job in self.detail.members):
            raise SuiteFailed(self.detail)
        return self

    def wait_for_end(self, *, progress: bool = True) -> Self:
        """The same, however the jobs end."""
        from tqdm.auto import tqdm  # here: its import takes a while in notebooks

        shown = progress and ("ipykernel" in sys.modules or sys.stderr.isatty())
        with tqdm(total=self.detail.shards, unit="shard", disable=not shown, dynamic_ncols=True) as bar:

            def tell(detail: SuiteDetail) -> None:
                bar.total, bar.n = detail.shards, detail.shards_done
                now = [f"{job.kind} {job.progress.phase}" for job in detail.members if job.state is JobState.RUNNING]
                bar.set_description_str(f"suite {detail.id} {', '.join(now[:3]) or 'waits'}", refresh=True)

            self.follow(tell)
        return self

    def follow(self, tell: Callable[[SuiteDetail], None]) -> None:
        """Look every second and tell what there is, until every job of every stage has ended."""
        tell(self.refresh().detail)
        while not self.detail.ended:
            time.sleep(_POLL_S)
            tell(self.refresh().detail)


def probe_items(
    probes: Mapping[str, Mapping[str, Any]] | Sequence[str] | Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Kinds, or kinds with their parameters, as the API's items; those that are items already stay."""
    if isinstance(probes, Mapping):
        return [{"kind": kind, "parameters": dict(parameters)} for kind, parameters in probes.items()]
    return [dict(each) if isinstance(each, Mapping) else {"kind": each} for each in probes]
