"""Hub models and data sets against a stand-in for the hub on this machine, in processes of their own.

huggingface_hub reads its endpoint and cache folder once, when it is imported: hence the processes.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.unit.workers.data.tokenizers_for_tests import byte_tokenizer
from tests.unit.workers.families import FAMILIES
from tests.unit.workers.hub_stand_in import commit_of, hub

PRELUDE = """
import json, sys
from pathlib import Path
from services.contracts.errors import KeyholeError
from services.contracts.settings import Settings
from services.sources import resolve_dataset, resolve_model
settings = Settings(home=Path(sys.argv[1]))
try:
    answer = (lambda: {expression})()
except KeyholeError as error:
    answer = {{"code": error.code, "message": error.message, "hint": error.hint}}
print("ANSWER" + json.dumps(answer))
"""


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good model and data set; models as pickle, with code, of an unsupported kind, cut short."""
    root = tmp_path_factory.mktemp("hub")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES["llama"]())
    for name in ("good", "pickle", "code", "bloom", "cut"):
        folder = root / "models" / "org" / name
        model.save_pretrained(folder)
        byte_tokenizer().save_pretrained(folder)
        (folder / "pytorch_model.bin").write_bytes(b"never to be downloaded")
        config = json.loads((folder / "config.json").read_text())
        config |= {"code": {"auto_map": {"AutoModel": "x.Y"}}, "bloom": {"model_type": "bloom"}}.get(name, {})
        (folder / "config.json").write_text(json.dumps(config))
        weights = folder / "model.safetensors"
        if name == "pickle":
            weights.unlink()
        if name == "cut":
            weights.write_bytes(weights.read_bytes()[:-10])
    data = root / "datasets" / "org" / "data"
    data.mkdir(parents=True)
    (data / "train.jsonl").write_text("".join(json.dumps({"text": f"document {i} " * 30}) + "\n" for i in range(50)))
    return root


@pytest.fixture
def endpoint(repositories: Path) -> Iterator[str]:
    with hub(repositories) as url:
        yield url


def _ask(expression: str, home: Path, endpoint: str) -> Any:
    # no retries that wait: the stand-in answers at once or is gone
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home / "hf"), "HF_HUB_DISABLE_XET": "1"}
    process = subprocess.run(
        [sys.executable, "-c", PRELUDE.format(expression=expression), str(home)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=200,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.rpartition("ANSWER")[2])


MODEL = "(lambda r: [r.source, r.identity, r.model_type, r.config['hidden_size']])(resolve_model({!r}, settings))"


def test_a_model_is_pinned_to_its_commit_and_found_again_without_the_network(
    repositories: Path, endpoint: str, tmp_path: Path
) -> None:
    commit = commit_of(repositories / "models" / "org" / "good")
    expected = [f"hf:org/good@{commit}", f"hf:org/good@{commit}", "llama", 32]
    assert _ask(MODEL.format("hf:org/good"), tmp_path, endpoint) == expected
    assert _ask(MODEL.format(f"hf:org/good@{commit}"), tmp_path, endpoint) == expected
    gone = "http://127.0.0.1:9"  # nothing listens there
    assert _ask(MODEL.format("hf:org/good"), tmp_path, gone) == expected
    refusal = _ask(MODEL.format("hf:org/good"), tmp_path / "another", gone)
    assert refusal["code"] == "unavailable"
    assert "hf download" in refusal["hint"]


@pytest.mark.parametrize(
    ("source", "code", "reason"),
    [
        ("hf:org/nothing", "model_not_found", "org/nothing"),
        ("hf:org/good@v9", "model_not_found", "v9"),
        ("hf:org/pickle", "model_refused", "pytorch_model.bin"),
        ("hf:org/code", "model_refused", "auto_map"),
        ("hf:org/bloom", "model_unsupported", "AttentionInterface"),
    ],
)
def test_a_model_that_cannot_be_measured_is_refused_at_submission(
    endpoint: str, tmp_path: Path, source: str, code: str, reason: str
) -> None:
    refusal = _ask(MODEL.format(source), tmp_path, endpoint)
    assert refusal["code"] == code
    assert reason in refusal["message"]


SERIES = "__import__('services.sources.series').sources.series.models_of({!r}, settings)"


def test_revisions_that_match_a_pattern_are_a_series_in_the_order_of_their_numbers(
    endpoint: str, tmp_path: Path
) -> None:
    steps = _ask(SERIES.format("hf:org/good@step*"), tmp_path, endpoint)
    assert steps == ["hf:org/good@step9", "hf:org/good@step10"]
    assert _ask(SERIES.format("hf:org/good@[mv]*"), tmp_path, endpoint) == ["hf:org/good@main", "hf:org/good@v1"]
    refusal = _ask(SERIES.format("hf:org/good@epoch*"), tmp_path, endpoint)
    assert (refusal["code"], "matches no model" in refusal["message"]) == ("model_not_found", True)
    away = _ask(SERIES.format("hf:org/good@step*"), tmp_path, "http://127.0.0.1:9")
    assert away["code"] == "unavailable"


LOAD = (
    "(lambda l, s: [l.identity, l.architecture.layers, s.identity, s.fingerprint, s.documents[-1].name, "
    "l.tokenizer.decode(s.token_ids[0])])("
    "*(lambda l: (l, __import__('workers.data').data.read_sequences({!r}, tokenizer=l.tokenizer, "
    "vocabulary_size=300, sequences=4, length=200, settings=settings)))"
    "(__import__('workers.models').models.load_model({!r}, device='cpu', dtype='float32', settings=settings)))"
)  # of a data set and a model


def test_a_model_and_a_data_set_of_the_hub_are_loaded_at_their_commits(
    repositories: Path, endpoint: str, tmp_path: Path
) -> None:
    first = _ask(LOAD.format("hf:org/data", "hf:org/good"), tmp_path, endpoint)
    identity, layers, data, _, name, text = first
    assert identity == f"hf:org/good@{commit_of(repositories / 'models' / 'org' / 'good')}"
    assert layers == 2
    assert data == f"hf:org/data?revision={commit_of(repositories / 'datasets' / 'org' / 'data')}"
    assert name == "row 2"
    assert text.startswith("document 0 document 0")
    assert not list((tmp_path / "hf").rglob("pytorch_model.bin"))
    assert _ask(LOAD.format(data, identity), tmp_path, "http://127.0.0.1:9") == first  # all is cached by now


def test_weights_are_vetted_again_after_the_download(endpoint: str, tmp_path: Path) -> None:
    refusal = _ask(LOAD.format("hf:org/data", "hf:org/cut"), tmp_path, endpoint)
    assert refusal["code"] == "model_refused"
    assert "safetensors" in refusal["message"]


TRAINING = """(lambda data, parameters: (lambda found: [
    len(found.training), found.identity, found.tokenizer.decode(found.validation[0]),
    found.tokenizer.decode(data.sequences_of_step(found, parameters, 3)[0]),
    max(json.loads(path.read_text())["documents"] for path in settings.cache.glob("token-streams/*.json"))])(
    data.prepare("hf:org/data", parameters, model_tokenizer=None, vocabulary_size=300, settings=settings)))(
    __import__("workers.training.data").training.data,
    __import__("services.contracts.training.training").contracts.training.training.TrainingParameters.model_validate(
        {{"length": 50, "sequences_per_step": 2, "steps": {steps}, "data":
          {{"validation_sequences": 4, "tokenizer": "hf:org/good"}}}}))"""


def test_a_training_streams_no_more_than_its_steps_need_and_takes_a_tokenizer_without_the_weights(
    repositories: Path, endpoint: str, tmp_path: Path
) -> None:
    sequences, identity, held_out, trained, documents = _ask(TRAINING.format(steps=5), tmp_path, endpoint)
    assert sequences == 10
    assert identity == f"hf:org/data?revision={commit_of(repositories / 'datasets' / 'org' / 'data')}"
    assert held_out == ("document 0 " * 30)[:50]  # one byte a token
    assert trained.count("document") > 2
    assert documents < 5  # of 50; each has 331 tokens and more, and 700 are needed
    assert not list((tmp_path / "hf").rglob("*.safetensors"))
    longer = _ask(TRAINING.format(steps=100), tmp_path, endpoint)
    assert longer[0] == 200
    assert longer[2] == held_out
    assert longer[4] > 25
