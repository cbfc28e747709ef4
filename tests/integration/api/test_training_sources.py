"""Sources that a training's parameters name are looked at when it is submitted."""

from typing import Any

import pytest

from tests.integration.api.conftest import ServedApi

SWEEP = {"seeds": [0], "variants": ["control"]}


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
        ({"tokenizer": "path:/etc"}, "invalid_source", "/etc"),
    ],
)
def test_a_source_that_is_not_there_is_told_at_submission(api, admin, data, code, told):
    body = training(api, data)
    for path, fields in (("/v1/jobs", {"kind": "training"}), ("/v1/sweeps", SWEEP)):
        answer = admin.post(path, json=body | fields).json()
        assert answer["code"] == code, answer
        assert told in answer["detail"]


def test_sources_that_are_there_are_taken_as_they_were_given(api, admin):
    data = {"validation_dataset": "builtin:python-docs", "tokenizer": api.model}
    made = admin.post("/v1/jobs", json=training(api, data) | {"kind": "training"})
    assert made.status_code in (200, 201, 202), made.text
    taken = made.json()["parameters"]["data"]
    assert {name: taken[name] for name in data} == data
