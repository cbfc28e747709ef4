"""States of jobs and shards, and how an attempt ended.

queued ──> running ──> succeeded
  │  ^        ├──────> failed
  │  └────────┤ (attempt lost or released)
  v           v
cancelled <─ cancelling
"""

from enum import StrEnum


class JobState(StrEnum):
    QUEUED = "queued"  # waits for a worker; some shards may be done already
    RUNNING = "running"  # at least one attempt works on it, or its summaries are being computed
    CANCELLING = "cancelling"  # someone asked to stop it; attempts are being ended
    SUCCEEDED = "succeeded"  # every shard and every summary is stored
    FAILED = "failed"  # stopped by an error that the job row carries
    CANCELLED = "cancelled"  # stopped on request; finished shards keep their rows

    @property
    def terminal(self) -> bool:
        return self in TERMINAL_STATES


TERMINAL_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})


class ShardState(StrEnum):
    QUEUED = "queued"  # nobody works on it
    RUNNING = "running"  # claimed by a live attempt
    DONE = "done"  # its rows were committed together with this state


class AttemptOutcome(StrEnum):
    COMPLETED = "completed"  # the child found no more shards to claim
    FAILED = "failed"  # the child reported an error that another attempt would meet again
    CRASHED = "crashed"  # the child died or met an error that may pass
    LOST = "lost"  # the lease ran out: worker killed, stopped or cut off
    CANCELLED = "cancelled"  # the job was cancelled
    TIMED_OUT = "timed_out"  # the job's time limit passed
    RELEASED = "released"  # the worker was shut down and gave its shards back


class Scope(StrEnum):
    READ = "read"  # list and read jobs, run SQL, export
    SUBMIT = "submit"  # submit, cancel and retry jobs; includes read
    ADMIN = "admin"  # manage tokens, delete jobs; includes submit


SCOPE_IMPLIES = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.SUBMIT: frozenset({Scope.READ, Scope.SUBMIT}),
    Scope.ADMIN: frozenset({Scope.READ, Scope.SUBMIT, Scope.ADMIN}),
}
