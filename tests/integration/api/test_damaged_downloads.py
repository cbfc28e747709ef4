"""Downloads of damaged files, a problem or a body that is too short; and of more files than the API reads at once."""

import time
from pathlib import Path
from threading import BoundedSemaphore

import httpx
import numpy as np
import psycopg
import pytest
from structlog.testing import capture_logs

from db.checkpoint_pieces import BATCH_BYTES, PIECE_BYTES
from services.api.routes import checkpoints
from services.contracts.states import JobState
from tests.integration.api.conftest import ServedApi
from tests.integration.db.stored_checkpoints import new_run, store, write_files


def damaged_in_its_last_piece(api: ServedApi, folder: Path, tensors: int) -> int:
    """A checkpoint whose weights have a piece for each tensor and one for the header; returns its number."""
    random = np.random.default_rng(tensors)
    weights = {f"w{number}": random.random(PIECE_BYTES // 8) for number in range(tensors)}
    with psycopg.connect(api.database_url, autocommit=True) as conn:
        run_id = new_run(conn, JobState.SUCCEEDED, f"damaged, of {tensors} tensors")
        checkpoint = store(conn, run_id, 3, write_files(folder, weights))
        conn.execute(
            "UPDATE keyhole.piece SET content = set_byte(content, 5, get_byte(content, 5) # 1) WHERE sha256 = ("
            "SELECT piece.sha256 FROM keyhole.checkpoint_piece AS piece JOIN keyhole.checkpoint_file AS file "
            "ON file.id = file_id WHERE checkpoint_id = %s AND name = 'model.safetensors' "
            "ORDER BY number DESC LIMIT 1)",
            (checkpoint,),
        )
    return checkpoint


def test_damage_anywhere_in_a_small_file_is_a_problem(api, admin, tmp_path):
    checkpoint = damaged_in_its_last_piece(api, tmp_path, 2)
    answer = admin.get(f"/v1/checkpoints/{checkpoint}/files/model.safetensors")
    assert answer.json()["code"] == "checkpoint_damaged", answer.text
    assert f"Checkpoint {checkpoint} is damaged: of model.safetensors, piece 2" in answer.json()["detail"]


def test_damage_late_in_a_large_file_breaks_the_body_and_is_logged_as_damage(api, admin, tmp_path):
    checkpoint = damaged_in_its_last_piece(api, tmp_path, BATCH_BYTES // PIECE_BYTES + 1)
    with capture_logs() as logged:
        with pytest.raises(httpx.RemoteProtocolError):
            admin.get(f"/v1/checkpoints/{checkpoint}/files/model.safetensors")
        deadline = time.monotonic() + 10
        while len(logged) < 2 and time.monotonic() < deadline:  # the line of the request comes after its answer
            time.sleep(0.01)
    assert [entry["event"] for entry in logged] == ["checkpoint_damaged", "request"]
    assert logged[0]["checkpoint"] == checkpoint


def test_more_downloads_than_the_api_reads_at_once_are_refused_and_ended_ones_make_room(
    api, admin, tmp_path, monkeypatch
):
    monkeypatch.setattr(checkpoints, "_downloads", BoundedSemaphore(1))
    random = np.random.default_rng(0)
    tensors = 2 * BATCH_BYTES // PIECE_BYTES  # more than is read before the first byte is sent
    weights = {f"w{number}": random.random(PIECE_BYTES // 8) for number in range(tensors)}
    with psycopg.connect(api.database_url, autocommit=True) as conn:
        run_id = new_run(conn, JobState.SUCCEEDED, "downloaded at once")
        checkpoint = store(conn, run_id, 3, write_files(tmp_path, weights))
    path = f"/v1/checkpoints/{checkpoint}/files/model.safetensors"
    with httpx.stream("GET", f"{api.url}{path}", headers=admin.headers) as first:
        next(first.iter_bytes(1000))
        for refused in (admin.get(path), admin.post(f"/v1/checkpoints/{checkpoint}/verify")):
            assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
            assert "Try again when" in refused.json()["hint"]
    deadline = time.monotonic() + 20
    while (answer := admin.get(path)).status_code == 503 and time.monotonic() < deadline:
        time.sleep(0.05)  # the API finds out that nobody listens any more when it sends
    assert answer.status_code == 200
    assert admin.get(path).status_code == 200
