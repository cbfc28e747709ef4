"""The progress bar of a job that is waited for: in a notebook or on a terminal, else nothing."""

import sys
import threading
import warnings
from typing import Any, Self

from services.contracts.jobs import EventView, JobDetail

REDRAW_S = 1.0  # on a terminal: the clock goes on while nothing happens


class Bar:
    """Counts shards; tells the phase, the rows and, once there is one, the error's code."""

    def __init__(self, job: JobDetail, *, shown: bool = True) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tqdm warns in notebooks without widgets, and works all the same
            from tqdm.auto import tqdm
        notebook = "ipykernel" in sys.modules
        self._bar: Any = tqdm(
            total=job.progress.shards,
            unit="shard",
            desc=f"job {job.id} {job.state}",
            disable=not shown or not (notebook or sys.stderr.isatty()),
            file=None if notebook else sys.stderr,
            bar_format="{desc} {percentage:3.0f}% {bar} {n_fmt}/{total_fmt} shards [{elapsed}<{remaining}{postfix}]",
            dynamic_ncols=True,
            leave=True,
        )
        self._job_id = job.id
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._redraw, name="progress bar", daemon=True)
        self._has_clock = not self._bar.disable and not notebook

    def __enter__(self) -> Self:
        if self._has_clock:
            self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._has_clock:
            self._clock.join()
        self._bar.close()

    def _redraw(self) -> None:
        while not self._ended.wait(REDRAW_S):
            self._bar.refresh()

    def tell(self, event: EventView) -> None:
        """Show what an event tells; the events of a retried job start over from what is done."""
        if event.type == "progress":
            self._bar.total = event.data["shards"]
            self._bar.n = event.data["shards_done"]
            self._bar.set_postfix_str(f"{event.data['rows']:,} rows", refresh=True)
        elif event.type == "phase":
            self._describe(str(event.data.get("phase")))
        elif event.type != "log":
            self._describe(event.type.replace("_", " "))

    def finish(self, job: JobDetail) -> None:
        self._bar.n = job.progress.shards_done
        self._describe(str(job.state))

    def _describe(self, text: str) -> None:
        self._bar.set_description_str(f"job {self._job_id} {text}", refresh=True)
