"""Checkpoints come back as they were stored, equal tensors are stored once, and what is damaged is noticed."""

from pathlib import Path

import fsspec
import numpy as np
import psycopg
import pytest
from safetensors.numpy import load_file

from db import checkpoint_store, object_store, stored_files
from db.checkpoint_pieces import PIECE_BYTES, cuts
from db.repositories import checkpoints
from services.contracts.errors import ErrorCode, KeyholeError
from services.sources.file_identity import folder_sha256
from tests.conftest import MigratedDatabase
from tests.integration.db.stored_checkpoints import count, new_run, store, transacting, write_files

random = np.random.default_rng(0)


def weights(**changed: np.ndarray) -> dict[str, np.ndarray]:
    """Four tensors, one of them larger than a piece."""
    fixed = np.random.default_rng(1)
    large = fixed.standard_normal((PIECE_BYTES // 4 + 1000,)).astype(np.float32)
    return {"a": fixed.standard_normal(7), "b": fixed.standard_normal((3, 5)), "c": large, "d": np.zeros(1)} | changed


def downloaded(conn: psycopg.Connection, checkpoint: int, folder: Path) -> Path:
    folder.mkdir()
    stored_files.download(conn, checkpoint, folder)
    return folder


@pytest.mark.parametrize("outside", [None, "file", "memory"])
def test_files_come_back_byte_for_byte(conn: psycopg.Connection, tmp_path: Path, outside: str | None) -> None:
    files = write_files(tmp_path / "in", weights(), resume=b"state")
    checkpoint = store(conn, new_run(conn), 5, files, outside=outside and f"{outside}://{tmp_path}/store")
    out = downloaded(conn, checkpoint, tmp_path / "out")
    assert sorted(path.name for path in out.iterdir()) == sorted(files)
    assert all((out / name).read_bytes() == path.read_bytes() for name, path in files.items())
    assert np.array_equal(load_file(out / "model.safetensors")["c"], weights()["c"])


def test_pieces_of_a_store_outside_are_objects_by_their_hash(conn: psycopg.Connection, tmp_path: Path) -> None:
    outside = f"file://{tmp_path}/store"
    store(conn, new_run(conn), 5, write_files(tmp_path / "in", weights()), outside=outside)
    paths = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    rows = {sha256.hex() for (sha256,) in conn.execute("SELECT sha256 FROM keyhole.piece")}
    assert {path.name for path in paths} == rows
    assert all(path.parent.name == path.name[:2] for path in paths)
    assert conn.execute("SELECT DISTINCT store, content FROM keyhole.piece").fetchall() == [(outside, None)]


def test_a_changed_setting_leaves_what_was_stored_before_readable(conn: psycopg.Connection, tmp_path: Path) -> None:
    run = new_run(conn)
    places = [None, f"file://{tmp_path}/one", f"memory://{tmp_path.name}", None]
    stored = [
        store(conn, run, step, write_files(tmp_path / str(step), weights(b=np.full(3, step))), outside=outside)
        for step, outside in enumerate(places)
    ]
    for step, checkpoint in enumerate(stored):
        out = downloaded(conn, checkpoint, tmp_path / f"out-{step}")
        assert (out / "model.safetensors").read_bytes() == (tmp_path / str(step) / "model.safetensors").read_bytes()
    assert count(conn, "piece") == 7 + 3, "only b is new each time, and lies in the store of its time"


def test_the_identity_is_that_of_a_folder_with_the_model_files(conn: psycopg.Connection, tmp_path: Path) -> None:
    files = write_files(tmp_path, weights(), resume=b"state")
    uploaded = checkpoint_store.upload(transacting(conn), files, None)
    expected = f"sha256:{folder_sha256(tmp_path, ['config.json', 'model.safetensors'])}"
    assert stored_files.identity_of(uploaded) == expected


def test_equal_tensors_of_two_checkpoints_are_stored_once(conn: psycopg.Connection, tmp_path: Path) -> None:
    run = new_run(conn)
    store(conn, run, 1, write_files(tmp_path / "1", weights()))
    assert count(conn, "piece") == 7, "config.json, header, a, b, d, and c in two"
    store(conn, run, 2, write_files(tmp_path / "2", weights(b=random.standard_normal((3, 5)))))
    assert count(conn, "piece") == 8, "only b is new: shapes, and so the header, are the same"
    assert count(conn, "checkpoint_piece") == 14


def test_equal_checkpoints_of_two_runs_are_stored_once(conn: psycopg.Connection, tmp_path: Path) -> None:
    files = write_files(tmp_path, weights())
    stored = [store(conn, new_run(conn, name=name), 1, files) for name in ("one", "two")]
    assert len(set(stored)) == 2
    assert count(conn, "piece") == 7


@pytest.mark.parametrize("content", [b"", b"12345", (2**62).to_bytes(8, "little") + b"{}", b"\x02" + bytes(7) + b"[]"])
def test_a_file_that_is_no_safetensors_is_stored_as_it_is(
    conn: psycopg.Connection, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "strange.safetensors"
    path.write_bytes(content)
    out = downloaded(conn, store(conn, new_run(conn), 1, {path.name: path}), tmp_path / "out")
    assert (out / path.name).read_bytes() == content


def test_pieces_cover_a_file_without_gaps_and_none_is_larger_than_the_limit(tmp_path: Path) -> None:
    path = write_files(tmp_path, weights())["model.safetensors"]
    position = 0
    for first, size in cuts(path):
        assert first == position
        assert 0 < size <= PIECE_BYTES
        position += size
    assert position == path.stat().st_size


@pytest.mark.parametrize("outside", [None, "file"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_damage_is_told_with_checkpoint_file_and_piece(
    conn: psycopg.Connection, tmp_path: Path, outside: str | None, damage: str
) -> None:
    checkpoint = store(
        conn, new_run(conn), 1, write_files(tmp_path / "in", weights()), outside=outside and f"file://{tmp_path}/store"
    )
    found = conn.execute(
        "SELECT piece.sha256 FROM keyhole.checkpoint_piece JOIN keyhole.piece USING (sha256) "
        "JOIN keyhole.checkpoint_file AS file ON file.id = file_id WHERE name = 'model.safetensors' AND number = 3"
    ).fetchone()
    assert found is not None
    sha256 = found[0]
    if outside:
        path = tmp_path / "store" / sha256.hex()[:2] / sha256.hex()
        content = path.read_bytes()
        path.unlink() if damage == "gone" else path.write_bytes(
            content[:-1] if damage == "cut" else bytes([content[0] ^ 1]) + content[1:]
        )
    elif damage == "gone":
        with conn.transaction():
            conn.execute("ALTER TABLE keyhole.checkpoint_piece DROP CONSTRAINT checkpoint_piece_sha256_fkey")
            conn.execute("DELETE FROM keyhole.piece WHERE sha256 = %s", (sha256,))
    else:
        changed = "substr(content, 2)" if damage == "cut" else "set_byte(content, 0, get_byte(content, 0) # 1)"
        conn.execute(f"UPDATE keyhole.piece SET content = {changed} WHERE sha256 = %s".encode(), (sha256,))
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(KeyholeError, match=f"Checkpoint {checkpoint} is damaged: of model.safetensors, piece 3 ") as e:
        stored_files.download(conn, checkpoint, out)
    assert e.value.code is ErrorCode.CHECKPOINT_DAMAGED
    assert not (out / "model.safetensors").exists(), "no file that looks whole"


@pytest.mark.parametrize("outside", [None, "file"])
@pytest.mark.parametrize("change", ["content = substr(content, 2)", "size = size + 1"])
def test_a_piece_of_another_size_than_it_should_have_is_written_anew(
    conn: psycopg.Connection, tmp_path: Path, change: str, outside: str | None
) -> None:
    run, files = new_run(conn), write_files(tmp_path / "in", weights())
    first = store(conn, run, 1, files)
    conn.execute(f"UPDATE keyhole.piece SET {change}".encode())
    second = store(conn, run, 2, files, outside=outside and f"file://{tmp_path}/store")
    wrong = "SELECT FROM keyhole.piece WHERE octet_length(content) <> size"
    assert conn.execute(wrong.encode()).fetchall() == []
    for checkpoint in (first, second):  # the same pieces
        out = downloaded(conn, checkpoint, tmp_path / f"out-{checkpoint}")
        assert all((out / name).read_bytes() == path.read_bytes() for name, path in files.items())
    sizes = dict(conn.execute("SELECT sha256, size FROM keyhole.piece").fetchall())
    for file in stored_files.files_of(conn, second):
        assert sum(sizes[piece] for piece in file.pieces) == file.size


def test_a_size_that_is_wrong_of_an_object_outside_is_put_right(conn: psycopg.Connection, tmp_path: Path) -> None:
    run, files, outside = new_run(conn), write_files(tmp_path / "in", weights()), f"file://{tmp_path}/store"
    store(conn, run, 1, files, outside=outside)
    before = conn.execute("SELECT sha256, size FROM keyhole.piece ORDER BY sha256").fetchall()
    conn.execute("UPDATE keyhole.piece SET size = size + 1")
    store(conn, run, 2, files, outside=outside)
    assert conn.execute("SELECT sha256, size FROM keyhole.piece ORDER BY sha256").fetchall() == before


def test_a_lost_row_of_a_file_is_damage_too(conn: psycopg.Connection, tmp_path: Path) -> None:
    checkpoint = store(conn, new_run(conn), 1, write_files(tmp_path / "in", weights()))
    conn.execute(
        "DELETE FROM keyhole.checkpoint_piece USING keyhole.checkpoint_file AS file "
        "WHERE file.id = file_id AND name = 'model.safetensors' AND number = 2"
    )
    with pytest.raises(KeyholeError, match=r"of model.safetensors, the whole"):
        downloaded(conn, checkpoint, tmp_path / "out")


def test_a_driver_that_is_not_installed_is_named(conn: psycopg.Connection, tmp_path: Path) -> None:
    with pytest.raises(KeyholeError) as missing:
        store(conn, new_run(conn), 1, write_files(tmp_path, weights()), outside="s3://bucket/folder")
    assert missing.value.code is ErrorCode.UNAVAILABLE
    assert "s3fs" in f"{missing.value}"
    assert count(conn, "piece") == 0
    with pytest.raises(KeyholeError, match="nonsense"):
        object_store.require_usable("nonsense://x")


def test_a_store_that_fails_leaves_no_checkpoint_and_can_be_tried_again(
    conn: psycopg.Connection, tmp_path: Path
) -> None:
    outside, files = f"file://{tmp_path}/store", write_files(tmp_path / "in", weights())
    (tmp_path / "store").write_text("a file where a folder is needed")
    with pytest.raises(KeyholeError, match="does not answer as it should"):
        store(conn, new_run(conn, name="one"), 1, files, outside=outside)
    assert count(conn, "checkpoint") == 0
    (tmp_path / "store").unlink()
    checkpoint = store(conn, new_run(conn, name="two"), 1, files, outside=outside)
    assert fsspec.filesystem("file").exists(f"{tmp_path}/store")
    downloaded(conn, checkpoint, tmp_path / "out")


def test_nothing_is_visible_before_the_transaction_of_the_caller_commits(
    conn: psycopg.Connection, database: MigratedDatabase, tmp_path: Path
) -> None:
    run = new_run(conn)

    class Killed(Exception):
        """The process died before its transaction ended."""

    def work(conn: psycopg.Connection, uploaded: list[stored_files.StoredFile]) -> None:
        new = checkpoint_store.NewCheckpoint(1, ["last"], {}, "llama", None, False)
        checkpoint_store.commit(conn, run, new, uploaded)
        with database.connect() as other:
            assert checkpoints.of_run(other, run) == []
        raise Killed

    with pytest.raises(Killed):
        checkpoint_store.stored(transacting(conn), write_files(tmp_path, weights()), None, work)
    assert (count(conn, "checkpoint"), count(conn, "checkpoint_file"), count(conn, "checkpoint_piece")) == (0, 0, 0)


def test_a_step_that_is_stored_again_keeps_its_number_and_gains_reasons_and_files(
    conn: psycopg.Connection, tmp_path: Path
) -> None:
    run = new_run(conn)
    first = store(conn, run, 7, write_files(tmp_path / "1", weights()), reasons=["interval"], loss=3.0)
    again = store(conn, run, 7, write_files(tmp_path / "2", weights(), resume=b"state"), reasons=["last"])
    assert again == first
    row = checkpoints.get(conn, first)
    assert row is not None
    assert (row.reasons, row.validation_loss_nats, row.resumable) == (["interval", "last"], 3.0, True)
    assert [file.name for file in stored_files.files_of(conn, first)] == [
        "config.json",
        "model.safetensors",
        "resume.safetensors",
    ]


def test_a_step_that_was_computed_otherwise_replaces_what_was_stored(conn: psycopg.Connection, tmp_path: Path) -> None:
    run = new_run(conn)
    store(conn, run, 7, write_files(tmp_path / "1", weights()))
    other = store(conn, run, 7, write_files(tmp_path / "2", weights(b=np.ones(3))))
    assert [row.id for row in checkpoints.of_run(conn, run)] == [other]
