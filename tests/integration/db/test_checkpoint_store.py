"""Checkpoints come back as they were stored, equal tensors are stored once, and what is damaged is noticed."""

from pathlib import Path

import numpy as np
import psycopg
from safetensors.numpy import load_file

from db import checkpoint_store
from db.checkpoint_pieces import PIECE_BYTES
from services.sources.file_identity import folder_sha256
from tests.integration.db.stored_checkpoints import count, new_run, store, transacting, write_files

random = np.random.default_rng(0)


def weights(**changed: np.ndarray) -> dict[str, np.ndarray]:
    """Four tensors, one of them larger than a piece."""
    fixed = np.random.default_rng(1)
    large = fixed.standard_normal((PIECE_BYTES // 4 + 1000,)).astype(np.float32)
    return {"a": fixed.standard_normal(7), "b": fixed.standard_normal((3, 5)), "c": large, "d": np.zeros(1)} | changed


def test_files_come_back_byte_for_byte(conn: psycopg.Connection, tmp_path: Path) -> None:
    files = write_files(tmp_path / "in", weights(), resume=b"state")
    checkpoint = store(conn, new_run(conn), 5, files)
    out = tmp_path / "out"
    out.mkdir()
    checkpoint_store.download(conn, checkpoint, out)
    assert sorted(path.name for path in out.iterdir()) == sorted(files)
    assert all((out / name).read_bytes() == path.read_bytes() for name, path in files.items())
    assert np.array_equal(load_file(out / "model.safetensors")["c"], weights()["c"])


def test_the_identity_is_that_of_a_folder_with_the_model_files(conn: psycopg.Connection, tmp_path: Path) -> None:
    files = write_files(tmp_path, weights(), resume=b"state")
    uploaded = checkpoint_store.upload(transacting(conn), files, None)
    assert (
        checkpoint_store.identity_of(uploaded)
        == f"sha256:{folder_sha256(tmp_path, ['config.json', 'model.safetensors'])}"
    )


def test_equal_tensors_of_two_checkpoints_are_stored_once(conn: psycopg.Connection, tmp_path: Path) -> None:
    run = new_run(conn)
    store(conn, run, 1, write_files(tmp_path / "1", weights()))
    # config.json, header, a, b, d, and c in two
    assert count(conn, "piece") == 7
    store(conn, run, 2, write_files(tmp_path / "2", weights(b=random.standard_normal((3, 5)))))
    assert count(conn, "piece") == 8, "only b is new: shapes, and so the header, are the same"
    assert count(conn, "checkpoint_piece") == 14
