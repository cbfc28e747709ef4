"""What a run tells, written into the database under the claim on the segment that it is in.

Numbers go in every few seconds, checkpoints as they come, and the end of a segment in one transaction with the state
that the run goes on from: whoever lost the claim meanwhile writes nothing any more.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from psycopg import Connection
from transformers import PreTrainedTokenizerFast

from db import checkpoint_store
from db.checkpoint_store import NewCheckpoint
from db.repositories import checkpoints, jobs, runs, shards
from db.repositories.shards import ClaimedShard
from db.stored_files import StoredFile
from services.contracts.states import JobState
from services.contracts.training.numbers import Matrix, Metric
from workers.lifecycle import Ledger
from workers.measuring import ClaimLostError
from workers.training import state
from workers.training.training import DueCheckpoint, Trainer

_WRITE_EVERY_S = 3.0


class DatabaseSink:
    """Takes what the trainer tells. Raises ClaimLostError once another attempt owns the run."""

    def __init__(
        self,
        ledger: Ledger,
        run_id: int,
        trainer: Trainer,
        tokenizer: PreTrainedTokenizerFast | None,
        folder: Path,
        store: str | None,
        surroundings: dict,
    ) -> None:
        self._ledger, self._run_id, self._folder, self._store = ledger, run_id, folder, store
        self._trainer, self._tokenizer, self._surroundings = trainer, tokenizer, surroundings
        self._policy = trainer.parameters.checkpoints
        self._segment: ClaimedShard | None = None
        self._metrics: list[Metric] = []
        self._matrices: list[Matrix] = []
        self._rows = 0  # of the segment
        self._written = 0.0

    def enter(self, segment: ClaimedShard) -> None:
        """Go on under this claim; what an attempt that was lost left of steps beyond the trainer's is removed."""
        self._segment, self._rows, self._written = segment, 0, 0.0
        step = self._trainer.step

        def go_back(conn: Connection) -> None:
            runs.forget_after(conn, self._run_id, step)
            checkpoints.go_back(conn, self._run_id, step)

        self._fenced(go_back)

    def measured(self, metrics: Sequence[Metric], matrices: Sequence[Matrix]) -> None:
        self._metrics += metrics
        self._matrices += matrices

    def took(self, step: int) -> None:
        if time.monotonic() - self._written > _WRITE_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Write what was measured."""
        self._fenced(self._write)
        self._forget_written()

    def checkpoint(self, checkpoint: DueCheckpoint) -> None:
        resumable = self._policy.keep_optimizer

        def work(conn: Connection, files: list[StoredFile]) -> None:
            self._fence(conn)
            self._write(conn)  # a run that goes on from here does not measure them again
            self._commit(conn, checkpoint, files, resumable=resumable)

        self._stored(resumable, work)
        self._forget_written()

    def finish(self, checkpoint: DueCheckpoint) -> None:
        """End the segment: its last numbers, the state to go on from, and the segment's own end, or none of them."""
        segment = self._held()
        with_state = DueCheckpoint(checkpoint.step, (*checkpoint.reasons, "resume"), checkpoint.validation_loss_nats)

        def work(conn: Connection, files: list[StoredFile]) -> None:
            if shards.is_done(conn, segment):  # the commit was heard of, its answer was not
                return
            self._fence(conn)
            self._write(conn)
            self._commit(conn, with_state, files, resumable=True)
            if not shards.finish(conn, segment, self._rows + len(self._metrics) + len(self._matrices), {}):
                raise ClaimLostError

        self._stored(True, work)
        self._forget_written()

    def _write(self, conn: Connection) -> None:
        runs.write(conn, self._run_id, self._metrics, self._matrices)
        runs.told(conn, self._run_id, self._trainer.step)

    def _forget_written(self) -> None:
        self._rows += len(self._metrics) + len(self._matrices)
        self._metrics, self._matrices = [], []
        self._written = time.monotonic()

    def _commit(self, conn: Connection, checkpoint: DueCheckpoint, files: list[StoredFile], *, resumable: bool) -> None:
        config = self._trainer.config()
        new = NewCheckpoint(
            checkpoint.step,
            checkpoint.reasons,
            config,
            config["model_type"],
            checkpoint.validation_loss_nats,
            resumable,
        )
        checkpoint_store.commit(conn, self._run_id, new, files)
        checkpoints.tidy(conn, self._run_id, self._policy, checkpoint.step)

    def _stored(self, resumable: bool, work: Callable[[Connection, list[StoredFile]], None]) -> None:
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            folder = Path(name)
            files = self._trainer.write_model(folder, self._tokenizer)
            if resumable:
                files[state.FILE] = folder / state.FILE
                self._trainer.write_state(files[state.FILE], self._surroundings)
            with closing(self._ledger.another()) as second:  # connects only if there is much to send
                checkpoint_store.stored(self._ledger.transact, files, self._store, work, [second.transact])

    def _fenced(self, work: Callable[[Connection], None]) -> None:
        def write(conn: Connection) -> None:
            self._fence(conn)
            work(conn)

        self._ledger.transact(write)

    def _fence(self, conn: Connection) -> None:
        """Hold the claim until the end of the transaction; the job before its shards, as everywhere."""
        segment = self._held()
        if jobs.lock(conn, segment.job_id) is not JobState.RUNNING or not runs.holds(conn, segment):
            raise ClaimLostError

    def _held(self) -> ClaimedShard:
        assert self._segment is not None, "enter a segment first"
        return self._segment
