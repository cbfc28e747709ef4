"""The README's first job on the real model, by command, Python and SQL, and its numbers computed again elsewhere."""

import json
import pydoc_data.topics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM

from services.client import Keyhole
from services.contracts.settings import Settings
from tests.acceptance.cluster import Cluster
from workers.models import load_model

MODEL, DATASET = "builtin:smollm2-135m-instruct", "builtin:python-docs"
LENGTH = 96
SUBMIT = ["submit", "gradient_scale", "--model", MODEL, "--dataset", DATASET, "--set", "sequences=2"]
SUBMIT += ["--set", f"length={LENGTH}", "--set", "queries.start=16", "--set", "queries.step=5", "--wait"]
QUERIES = list(range(16, LENGTH, 5))


def keyhole(cluster: Cluster, *arguments: str) -> str:
    command = [sys.executable, "-m", "services.cli.app", *arguments]
    done = subprocess.run(command, env=cluster.environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def job(cluster: Cluster, builtin_settings: Settings) -> dict[str, Any]:
    """The job's answer, computed by a worker of its own."""
    load_model(MODEL, device="cpu", dtype="float32", settings=builtin_settings)  # converted once for all tests
    (cluster.home / "cache").mkdir(exist_ok=True)
    (cluster.home / "cache" / "models").symlink_to(builtin_settings.cache / "models")
    with cluster.worker():
        return json.loads(keyhole(cluster, *SUBMIT, "--json"))


def test_the_job_succeeds_and_says_how_it_was_checked(cluster: Cluster, job: dict[str, Any]) -> None:
    assert job["state"] == "succeeded"
    assert job["progress"]["rows"] == 30 * 9 * 2 * len(QUERIES)
    assert job["checks"]["max_identity_residual"] < 1e-4
    assert 1.0 < job["checks"]["loss_nats"] < 6.0
    assert job["environment"]["torch"] == torch.__version__
    assert job["dataset_fingerprint"]


def test_the_same_submission_is_answered_without_a_worker(cluster: Cluster, job: dict[str, Any]) -> None:
    again = json.loads(keyhole(cluster, *SUBMIT, "--json"))
    assert (again["id"], again["reused"]) == (job["id"], True)


def test_every_number_of_two_heads_is_that_of_plain_transformers_in_float64(
    cluster: Cluster, job: dict[str, Any], builtin_settings: Settings
) -> None:
    client = Keyhole(cluster.api_url, cluster.token)
    frame = client.job(job["id"]).frame("gradient_scale")
    tokens = client.job(job["id"]).frame("token")
    for layer, head, sequence in ((0, 4, 0), (17, 8, 1)):
        ids = tokens[tokens.sequence == sequence].token_id.to_numpy()
        expected = spreads_by_hand(ids, layer, head, builtin_settings)
        measured = frame[(frame.layer == layer) & (frame["head"] == head) & (frame.sequence == sequence)]
        measured = measured.sort_values("query")
        assert measured["query"].tolist() == QUERIES
        # float32 scores of a few tens carry 1e-6 relative; the last query of a row of rounding-sized advantages more
        np.testing.assert_allclose(measured.log10_d_a, expected[0], atol=2e-4)
        np.testing.assert_allclose(measured.log10_d_c, expected[1], atol=2e-3)


def spreads_by_hand(ids: np.ndarray, layer: int, head: int, settings: Settings) -> tuple[list[float], list[float]]:
    """log10 D_a and D_c from the model's own eager attention and autograd, one query at a time."""
    config = next((settings.cache / "models").glob("**/config.json"))
    model = AutoModelForCausalLM.from_pretrained(config.parent, dtype=torch.float64, attn_implementation="eager")
    attention = model.model.layers[layer].self_attn
    seen: dict[str, torch.Tensor] = {}
    attention.v_proj.register_forward_hook(lambda module, arguments, output: seen.update(value=output))

    def keep_output(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        arguments[0].retain_grad()
        seen["output"] = arguments[0]

    attention.o_proj.register_forward_pre_hook(keep_output)
    batch = torch.tensor(ids[None].astype(np.int64))
    answer = model(batch, labels=batch, output_attentions=True, use_cache=False)
    answer.loss.backward()
    width = model.config.hidden_size // model.config.num_attention_heads
    group = head // (model.config.num_attention_heads // model.config.num_key_value_heads)
    pattern = answer.attentions[layer][0, head].detach()
    value = seen["value"][0, :, group * width : (group + 1) * width].detach()
    output = seen["output"][0, :, head * width : (head + 1) * width].detach()
    gradient = seen["output"].grad
    assert gradient is not None
    delta = gradient[0, :, head * width : (head + 1) * width]
    spreads: tuple[list[float], list[float]] = ([], [])
    for query in QUERIES:
        advantage = -(value[: query + 1] - output[query]) @ delta[query]
        for found, row in zip(spreads, (pattern[query, : query + 1], advantage.abs()), strict=True):
            found.append(float(np.log10(row.max() / np.median(row))))
    return spreads


def test_rows_can_be_shown_with_their_text(cluster: Cluster, job: dict[str, Any]) -> None:
    query = f"SELECT text FROM sequence_text WHERE job_id = {job['id']} AND sequence = 0"
    ((text,),) = json.loads(keyhole(cluster, "sql", query, "--format", "json"))["rows"]
    topics = pydoc_data.topics.topics
    assert topics[sorted(topics)[0]].startswith(text[:150])
    count = f"SELECT count(*) AS n FROM token WHERE job_id = {job['id']} AND text IS NOT NULL"
    assert json.loads(keyhole(cluster, "sql", count, "--format", "json"))["rows"] == [[2 * LENGTH]]


def test_summaries_are_those_of_the_rows(cluster: Cluster, job: dict[str, Any]) -> None:
    client = Keyhole(cluster.api_url, cluster.token)
    frame = client.job(job["id"]).frame("gradient_scale")
    summary = client.job(job["id"]).summary(metric="log10_d_a", level="layer").set_index("layer")
    expected = frame.groupby("layer").log10_d_a.median()
    np.testing.assert_allclose(summary["median"].to_numpy(), expected.to_numpy(), rtol=1e-6)


def test_the_export_is_the_tables(cluster: Cluster, job: dict[str, Any], tmp_path: Path) -> None:
    keyhole(cluster, "export", str(job["id"]), "--to", str(tmp_path / "out"))
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    rows = {file["table"]: file["rows"] for file in manifest["files"]}
    assert rows == {
        "gradient_scale": job["progress"]["rows"],
        "token": 2 * LENGTH,
        "summary": 3 * (30 * 9 + 30 + 1),
    }
    assert pq.read_table(tmp_path / "out" / "token.parquet").num_rows == 2 * LENGTH
