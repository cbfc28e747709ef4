"""Downloads of damaged files: a problem where the damage shows at the start, else a body that is too short."""

import time
from pathlib import Path

import httpx
import numpy as np
import psycopg
import pytest
from structlog.testing import capture_logs

from db.checkpoint_pieces import BATCH_BYTES, PIECE_BYTES
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
