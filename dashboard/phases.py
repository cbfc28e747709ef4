"""How long a job was in each of its phases, out of the events that begin and end them.

A job that ended and was retried later spent the time between in no phase at all.
"""

from collections.abc import Sequence
from datetime import datetime

from dashboard.queries.jobs import Event
from services.contracts.states import TERMINAL_STATES, JobState

QUEUED, STARTING, CANCELLING = "queued", "starting", "cancelling"
PHASES = (QUEUED, STARTING, "loading model", "reading data", "measuring", "summarizing", CANCELLING)

# The end of an attempt is no mark: others may still measure, and the last one's end writes a state beside it.
EVENT_TYPES = ("phase", *JobState)
_AFTER_STATE = {JobState.QUEUED: QUEUED, JobState.RUNNING: STARTING, JobState.CANCELLING: CANCELLING}


def phase_marks(created_at: datetime, events: Sequence[Event]) -> list[tuple[datetime, str | None]]:
    """When each phase began, in order; None stands for no phase. ``events`` are of EVENT_TYPES, the first first."""
    marks: list[tuple[datetime, str | None]] = [(created_at, QUEUED)]
    for event in events:
        if event.type == "phase":
            marks.append((event.at, str(event.data.get("phase"))))
        elif event.type in TERMINAL_STATES:
            marks.append((event.at, None))
        else:
            marks.append((event.at, _AFTER_STATE[JobState(event.type)]))
    return marks


def phase_seconds(marks: Sequence[tuple[datetime, str | None]], end: datetime) -> dict[str, float]:
    """Seconds in each phase up to ``end``, all stays together, in the order in which phases follow one another."""
    lasted: dict[str, float] = {}
    for (start, phase), (stop, _) in zip(marks, [*marks[1:], (end, None)], strict=True):
        if phase is not None:
            lasted[phase] = lasted.get(phase, 0.0) + max(0.0, (stop - start).total_seconds())
    return {phase: lasted[phase] for phase in [*PHASES, *lasted] if phase in lasted}
