"""What nobody refers to is removed, and nothing else, whatever writers do; inside and outside the database."""

import threading
from pathlib import Path

import fsspec
import numpy as np
import psycopg
import pytest

from db import checkpoint_store, piece_collector, stored_files
from db.checkpoint_store import NewCheckpoint, PiecesGone
from db.repositories import checkpoints, jobs
from services.contracts.states import JobState
from tests.conftest import MigratedDatabase
from tests.integration.db.stored_checkpoints import CONFIG, count, new_run, store, transacting, write_files

NEW = NewCheckpoint(1, ["interval"], CONFIG, "llama", None, False)


@pytest.fixture(params=["database", "file", "memory"])
def outside(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """A store of each sort; None is the database."""
    return {"database": None, "file": f"file://{tmp_path / 'store'}", "memory": f"memory://{tmp_path.name}"}[
        request.param
    ]


def objects(outside: str) -> int:
    files, root = fsspec.core.url_to_fs(outside)
    return len([path for path in files.find(root) if "/." not in path])


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    return {"w": np.random.default_rng(seed).standard_normal(100), "equal": np.ones(10)}


def age(conn: psycopg.Connection) -> None:
    """Let two hours pass for all pieces."""
    conn.execute("UPDATE keyhole.piece SET seen_at = seen_at - interval '2 hours'")


def test_what_a_writer_left_behind_is_collected_after_an_hour(
    conn: psycopg.Connection, tmp_path: Path, outside: str | None
) -> None:
    """A crash between upload and commit leaves no checkpoint, and after an hour nothing at all."""
    checkpoint_store.upload(transacting(conn), write_files(tmp_path, weights()), outside)
    assert (count(conn, "checkpoint"), count(conn, "piece")) == (0, 4)
    assert piece_collector.collect(conn).pieces == 0
    age(conn)
    assert piece_collector.collect(conn).pieces == 4
    assert count(conn, "piece") == 0
    assert outside is None or objects(outside) == 0


def test_an_announced_piece_whose_writer_died_is_collected_at_once(conn: psycopg.Connection, tmp_path: Path) -> None:
    conn.execute(
        "INSERT INTO keyhole.piece (sha256, size, store, seen_at) VALUES (%s, 1, %s, NULL)",
        (bytes(32), f"file://{tmp_path}"),
    )
    assert piece_collector.collect(conn).pieces == 1


def test_pieces_of_a_deleted_job_go_and_those_that_another_run_shares_stay(
    conn: psycopg.Connection, tmp_path: Path, outside: str | None
) -> None:
    first, second = new_run(conn, JobState.SUCCEEDED, "one"), new_run(conn, JobState.SUCCEEDED, "two")
    store(conn, first, 1, write_files(tmp_path / "1", weights(1)), outside=outside)
    kept = store(conn, second, 1, write_files(tmp_path / "2", weights(2)), outside=outside)
    row = conn.execute("SELECT job_id FROM keyhole.run WHERE id = %s", (first,)).fetchone()
    assert row is not None
    with conn.transaction():
        jobs.delete(conn, row[0])
    age(conn)
    assert piece_collector.collect(conn).pieces == 1, "w of the first; config, header and equal are the second's too"
    assert outside is None or objects(outside) == 4
    out = tmp_path / "out"
    out.mkdir()
    stored_files.download(conn, kept, out)
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "2" / "model.safetensors").read_bytes()


def test_a_writer_whose_pieces_were_collected_stores_them_again(
    conn: psycopg.Connection, tmp_path: Path, outside: str | None
) -> None:
    run, files = new_run(conn), write_files(tmp_path, weights())
    attempts = []

    def work(conn: psycopg.Connection, uploaded: list[stored_files.StoredFile]) -> int:
        attempts.append(1)
        if len(attempts) == 1:  # as if an hour had passed between upload and commit
            age(conn)
            conn.execute("COMMIT")
            piece_collector.collect(conn)
            conn.execute("BEGIN")
        return checkpoint_store.commit(conn, run, NEW, uploaded)

    def transact(function):  # type: ignore[no-untyped-def]
        conn.execute("BEGIN")
        try:
            result = function(conn)
        except BaseException:
            conn.execute("ROLLBACK")
            raise
        conn.execute("COMMIT")
        return result

    checkpoint = checkpoint_store.stored(transact, files, outside, work)
    assert len(attempts) == 2
    out = tmp_path / "out"
    out.mkdir()
    stored_files.download(conn, checkpoint, out)
    assert (out / "model.safetensors").read_bytes() == files["model.safetensors"].read_bytes()


def test_a_reference_that_is_not_committed_yet_holds_the_collector_off(
    conn: psycopg.Connection, database: MigratedDatabase, tmp_path: Path, outside: str | None
) -> None:
    run, files = new_run(conn), write_files(tmp_path, weights())
    uploaded = checkpoint_store.upload(transacting(conn), files, outside)
    age(conn)
    with database.connect() as writer, writer.transaction():
        checkpoint = checkpoint_store.commit(writer, run, NEW, uploaded)
        assert piece_collector.collect(conn).pieces == 0
    out = tmp_path / "out"
    out.mkdir()
    stored_files.download(conn, checkpoint, out)  # marked by the collector or not, its bytes are there
    assert piece_collector.collect(conn).pieces == 0
    marked = conn.execute("SELECT count(*) FROM keyhole.piece WHERE seen_at IS NULL").fetchone()
    assert marked == (0,), "the collector has seen the reference and given its mark back"


def test_pieces_that_are_leaving_are_not_referred_to(conn: psycopg.Connection, tmp_path: Path) -> None:
    run = new_run(conn)
    outside = f"file://{tmp_path / 'store'}"
    uploaded = checkpoint_store.upload(transacting(conn), write_files(tmp_path, weights()), outside)
    conn.execute("UPDATE keyhole.piece SET seen_at = NULL")
    with pytest.raises(PiecesGone), conn.transaction():
        checkpoint_store.commit(conn, run, NEW, uploaded)
    assert count(conn, "checkpoint") == 0


def test_writers_of_equal_pieces_and_a_hasty_collector_lose_nothing(
    conn: psycopg.Connection, database: MigratedDatabase, tmp_path: Path, outside: str | None
) -> None:
    """Three writers of the same tensors, and a collector that waits for nobody: every checkpoint comes back whole."""
    runs = [new_run(conn, name=f"run {number}") for number in range(3)]
    stored: dict[int, Path] = {}
    stop = threading.Event()
    problems: list[BaseException] = []

    def write(run: int) -> None:
        try:
            with database.connect() as own:
                for step in range(6):
                    folder = tmp_path / f"{run}-{step}"
                    files = write_files(folder, weights(step))
                    stored[store(own, run, step, files, outside=outside)] = folder
        except BaseException as error:
            problems.append(error)

    def collect() -> None:
        try:
            with database.connect() as own:
                while not stop.is_set():
                    piece_collector.collect(own, kept_s=0.2)
        except BaseException as error:
            problems.append(error)

    writers = [threading.Thread(target=write, args=(run,)) for run in runs]
    collector = threading.Thread(target=collect)
    for thread in (*writers, collector):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    collector.join()
    assert not problems
    piece_collector.collect(conn, kept_s=0)
    assert count(conn, "piece") == 6 + 3, "w of six steps, and config, header and equal of all"
    assert outside is None or objects(outside) == 9
    for checkpoint, folder in stored.items():
        out = tmp_path / f"out-{checkpoint}"
        out.mkdir()
        stored_files.download(conn, checkpoint, out)
        assert (out / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_a_checkpoint_kept_for_no_reason_goes_once_no_open_job_is_to_read_it(
    conn: psycopg.Connection, tmp_path: Path
) -> None:
    run = new_run(conn)
    checkpoint = store(conn, run, 1, write_files(tmp_path, weights()), reasons=[])
    probe = conn.execute("SELECT id FROM keyhole.job").fetchone()
    assert probe is not None
    conn.execute("UPDATE keyhole.job SET model_source = %s", (f"checkpoint:{checkpoint}",))
    assert checkpoints.remove_unwanted(conn) == 0
    conn.execute("UPDATE keyhole.job SET state = 'succeeded'")
    assert checkpoints.remove_unwanted(conn) == 1
