"""Sources that a training's parameters name are looked at and pinned when it is submitted."""

from pathlib import Path
from typing import Any

import psycopg
import pytest

from db.repositories import runs
from services.contracts.settings import Settings
from services.sources import resolve_dataset
from services.sources.tokenizers import resolve_tokenizer
from tests.integration.api.conftest import ServedApi
from tests.unit.workers.data.tokenizers_for_tests import bpe_tokenizer

SWEEP = {"seeds": [0], "variants": ["control"]}
TEXT = "The quick brown fox jumps over the lazy dog. "


@pytest.fixture
def home(api: ServedApi) -> Path:
    """Of the API, with a tokenizer in a folder that has no model, and a file of text."""
    folder = Path(api.model.removeprefix("path:")).parents[1]
    bpe_tokenizer(TEXT, 300).save_pretrained(folder / "models" / "tokenizer")
    (folder / "data" / "held.txt").write_text(TEXT * 50)
    return folder


def training(api: ServedApi, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": "config:gpt-tiny",
        "dataset": api.dataset,
        "parameters": {"steps": 2, "length": 16, "data": data},
        "force": True,
    }


@pytest.mark.parametrize(
    ("data", "code", "told"),
    [
        ({"validation_dataset": "file:nowhere.txt"}, "dataset_not_found", "nowhere.txt"),
        ({"validation_dataset": "tokens:shard_*.bin"}, "dataset_not_found", "matches shard_*.bin"),
        ({"validation_dataset": "file:/etc/passwd"}, "invalid_source", "/etc/passwd"),
        ({"tokenizer": "path:nowhere"}, "model_not_found", "nowhere"),
        ({"tokenizer": "path:tiny"}, "model_refused", "no tokenizer.json"),
        ({"tokenizer": "path:/etc"}, "invalid_source", "/etc"),
        ({"tokenizer": "none"}, "dataset_invalid", "data.tokenizer is none"),
        ({"tokenizer": "bpe:100000"}, "tokens_out_of_range", "100,000 tokens does not fit"),
    ],
)
def test_a_source_that_cannot_be_is_told_at_submission(api, admin, data, code, told):
    body = training(api, data)
    for path, fields in (("/v1/jobs", {"kind": "training"}), ("/v1/sweeps", SWEEP)):
        answer = admin.post(path, json=body | fields).json()
        assert answer["code"] == code, answer
        assert told in answer["detail"]


def test_sources_that_are_there_are_pinned(api: ServedApi, admin, home):
    data = {"validation_dataset": "file:held.txt", "tokenizer": "path:tokenizer"}
    made = admin.post("/v1/jobs", json=training(api, data) | {"kind": "training"})
    assert made.status_code == 202, made.text
    taken = made.json()["parameters"]["data"]
    assert taken["validation_dataset"] == f"file:{home}/data/held.txt"
    assert taken["tokenizer"] == f"path:{home}/models/tokenizer"
    with psycopg.connect(api.database_url) as conn:
        run_id = runs.of_job(conn, made.json()["id"])
        assert run_id is not None
        settings = Settings(home=home)
        assert runs.pinned(conn, run_id) == {
            "data.validation_dataset": resolve_dataset("file:held.txt", settings).identity,
            "data.tokenizer": resolve_tokenizer("path:tokenizer", settings).identity,
        }


@pytest.mark.parametrize("changed", ["data", "tokenizer"])
def test_another_content_makes_another_job(api: ServedApi, admin, home, changed):
    data = {"validation_dataset": "file:held.txt", "tokenizer": "path:tokenizer"}
    body = training(api, data) | {"kind": "training", "force": False}
    body["parameters"]["seed"] = {"data": 1, "tokenizer": 2}[changed]
    first = admin.post("/v1/jobs", json=body).json()
    assert admin.post("/v1/jobs", json=body).json()["id"] == first["id"], "nothing has changed"
    if changed == "data":
        (home / "data" / "held.txt").write_text(TEXT * 51)
    else:
        bpe_tokenizer(TEXT, 262).save_pretrained(home / "models" / "tokenizer")
    assert admin.post("/v1/jobs", json=body).json()["id"] != first["id"]
