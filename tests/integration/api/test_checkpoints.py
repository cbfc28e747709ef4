"""Checkpoints by HTTP, client and command: found, exported as the model that was stored, named as sources of jobs."""

import json
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import torch
import transformers

from services.client import Keyhole, KeyholeError
from services.contracts.errors import ErrorCode
from services.contracts.states import JobState, Scope
from tests.integration.api.conftest import ServedApi, write_model
from tests.integration.db.stored_checkpoints import new_run, store

TOKENS = torch.arange(12)[None] % 61
DEFINITION = {"qk_norm": True, "scale": 0.12}


def tiny_model(seed: int, **attention: object) -> transformers.PreTrainedModel:
    torch.manual_seed(seed)
    config = transformers.GPT2Config(vocab_size=61, n_positions=64, n_embd=32, n_layer=2, n_head=2)
    if attention:
        config.keyhole_attention = attention  # type: ignore[attr-defined]
    return transformers.GPT2LMHeadModel(config)


def saved(model: transformers.PreTrainedModel, folder: Path) -> dict[str, Path]:
    """The files that the training loop would store of the model."""
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def run(api: ServedApi, tmp_path_factory: pytest.TempPathFactory) -> int:
    return three_steps(api, tmp_path_factory.mktemp("run"))


def three_steps(api: ServedApi, folder: Path) -> int:
    """A run with checkpoints at steps 0, 10 and 20; the one at 10 is the best."""
    with psycopg.connect(api.database_url, autocommit=True) as conn:
        run_id = new_run(conn, JobState.SUCCEEDED, "three steps")
        for step, loss, reason in ((0, 4.2, "first"), (10, 3.0, "best"), (20, 3.5, "last")):
            files = saved(tiny_model(step), folder / str(step))
            config = json.loads(files["config.json"].read_text())
            store(conn, run_id, step, files, reasons=[reason], loss=loss, config=config)
    return run_id


@pytest.fixture
def keyhole(api: ServedApi):
    with Keyhole(api.url, api.tokens[Scope.ADMIN]) as client:
        yield client


def command(api: ServedApi, *arguments: str) -> str:
    return _done(api, *arguments).stdout


def complaint(api: ServedApi, *arguments: str) -> str:
    return _done(api, *arguments).stderr


def _done(api: ServedApi, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"KEYHOLE_API_URL": api.url, "KEYHOLE_TOKEN": api.tokens[Scope.ADMIN], "PATH": "/usr/bin"}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("keyhole")), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_checkpoints_are_listed_by_filters_newest_first(api, keyhole, run):
    steps = [each.step for each in keyhole.checkpoints(run=run)]
    assert steps == [20, 10, 0]
    assert [each.step for each in keyhole.checkpoints(run=run, min_step=5, max_step=15)] == [10]
    assert [each.step for each in keyhole.checkpoints(run=run, reason="last")] == [20]
    assert [each.step for each in keyhole.checkpoints(run=run, max_loss=3.5, model_type="gpt2")] == [20, 10]
    assert [each.step for each in keyhole.checkpoints(run=run, min_loss=4, variant="control")] == [0]
    assert not list(keyhole.checkpoints(run=run, variant="natq"))
    assert [each.step for each in keyhole.checkpoints(run=run, limit=2)] == [20, 10]


def test_pages_follow_each_other(api, admin, run):
    first = admin.get("/v1/checkpoints", params={"run": run, "limit": 2}).json()
    second = admin.get("/v1/checkpoints", params={"run": run, "limit": 2, "cursor": first["next"]}).json()
    assert [each["step"] for each in first["items"] + second["items"]] == [20, 10, 0]
    assert second["next"] is None


def test_an_exported_checkpoint_is_the_model_that_was_stored(api, keyhole, run, tmp_path):
    folder = keyhole.checkpoint(f"run:{run}@best").export(tmp_path / "best")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        assert torch.equal(loaded(TOKENS).logits, tiny_model(10).eval()(TOKENS).logits)
    told = (folder / "README.md").read_text()
    assert f"run {run}: three steps" in told
    assert "step: 10" in told and "variant: control" in told and "3.0000 nats" in told
    assert "another attention" not in told
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]


def test_the_export_of_a_model_with_its_own_attention_says_so(api, keyhole, tmp_path):
    files = saved(tiny_model(1, **DEFINITION), tmp_path / "in")
    config = json.loads(files["config.json"].read_text())
    assert config["keyhole_attention"] == DEFINITION
    with psycopg.connect(api.database_url, autocommit=True) as conn:
        checkpoint = store(conn, new_run(conn, JobState.SUCCEEDED, "own attention"), 1, files, config=config)
    folder = keyhole.checkpoint(checkpoint).export(tmp_path / "out")
    assert "another attention than this model was trained with" in (folder / "README.md").read_text()
    assert json.loads((folder / "config.json").read_text())["keyhole_attention"] == DEFINITION


def test_an_export_that_broke_off_goes_on_and_one_that_is_there_is_left(api, keyhole, run, tmp_path):
    folder = tmp_path / "out"
    partial = tmp_path / "out.partial"
    partial.mkdir()
    (partial / ".keyhole-export").touch()
    (partial / ".model.safetensors.part").write_bytes(b"cut short")
    (partial / "config.json").write_bytes(b"damaged")
    checkpoint = keyhole.checkpoint(f"run:{run}@0")
    checkpoint.export(folder)
    assert not partial.exists()
    before = (folder / "model.safetensors").stat().st_mtime_ns
    checkpoint.export(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(KeyholeError, match=r"is not an export of checkpoint .*: .*differ") as refused:
        keyhole.checkpoint(f"run:{run}@20").export(folder)
    assert refused.value.code is ErrorCode.CONFLICT


def test_a_file_has_its_sha256_as_etag(api, admin, run):
    listed = admin.get("/v1/checkpoints", params={"run": run}).json()["items"][0]
    detail = admin.get(f"/v1/checkpoints/{listed['id']}").json()
    file = next(each for each in detail["files"] if each["name"] == "model.safetensors")
    path = f"/v1/checkpoints/{listed['id']}/files/model.safetensors"
    answer = admin.get(path)
    assert answer.headers["ETag"] == f'"{file["sha256"]}"'
    assert len(answer.content) == file["bytes"] == int(answer.headers["Content-Length"])
    assert admin.get(path, headers={"If-None-Match": answer.headers["ETag"]}).status_code == 304
    head = admin.head(path)
    told = ("ETag", "Content-Length", "Content-Type", "Accept-Ranges")
    assert (head.status_code, head.content) == (200, b"")
    assert [head.headers[name] for name in told] == [answer.headers[name] for name in told]
    assert admin.head(path, headers={"If-None-Match": answer.headers["ETag"]}).status_code == 304
    assert admin.head(f"/v1/checkpoints/{listed['id']}/files/weights.bin").status_code == 404
    missing = admin.get(f"/v1/checkpoints/{listed['id']}/files/weights.bin")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    assert "model.safetensors" in missing.json()["hint"]


def test_damage_is_told_by_verify_and_by_export(api, keyhole, tmp_path):
    with psycopg.connect(api.database_url, autocommit=True) as conn:
        files = saved(tiny_model(77), tmp_path / "in")
        checkpoint = store(conn, new_run(conn, JobState.SUCCEEDED, "damaged"), 3, files)
        found = keyhole.checkpoint(checkpoint)
        assert found.verify().files == 2
        last = conn.execute(
            "SELECT number, piece.sha256 FROM keyhole.checkpoint_piece JOIN keyhole.piece USING (sha256) "
            "JOIN keyhole.checkpoint_file AS file ON file.id = file_id "
            "WHERE checkpoint_id = %s AND name = 'model.safetensors' ORDER BY number DESC LIMIT 1",
            (checkpoint,),
        ).fetchone()
        assert last is not None
        conn.execute(
            "UPDATE keyhole.piece SET content = set_byte(content, 5, get_byte(content, 5) # 1) WHERE sha256 = %s",
            (last[1],),
        )
    for read in (found.verify, lambda: found.export(tmp_path / "out")):
        with pytest.raises(KeyholeError, match=rf"of model.safetensors, piece {last[0]}") as damaged:
            read()
        assert damaged.value.code is ErrorCode.CHECKPOINT_DAMAGED
    assert not (tmp_path / "out").exists()


def test_only_admins_delete_and_never_what_an_open_job_is_to_read(api, keyhole, tmp_path):
    with psycopg.connect(api.database_url, autocommit=True) as conn:
        run_id = new_run(conn, JobState.SUCCEEDED, "to be deleted")
        files = saved(tiny_model(5), tmp_path)
        checkpoint = store(conn, run_id, 1, files, config=json.loads(files["config.json"].read_text()))
    with api.client(Scope.SUBMIT) as submitter:
        assert submitter.delete(f"/v1/checkpoints/{checkpoint}").status_code == 403
    job = keyhole.submit(
        "gradient_scale", model=f"checkpoint:{checkpoint}", dataset=api.dataset, sequences=1, length=40, label="reader"
    )
    with pytest.raises(KeyholeError, match=f"Job {job.id} is to read"):
        keyhole.checkpoint(checkpoint).delete()
    job.cancel()
    keyhole.checkpoint(checkpoint).delete()
    with pytest.raises(KeyholeError, match=f"There is no checkpoint {checkpoint}"):
        keyhole.checkpoint(checkpoint)


def test_a_training_job_whose_checkpoint_an_open_job_is_to_read_is_not_deleted(api, keyhole, admin, tmp_path):
    with psycopg.connect(api.database_url, autocommit=True) as conn:
        run_id = new_run(conn, JobState.SUCCEEDED, "to be read")
        files = saved(tiny_model(6), tmp_path)
        checkpoint = store(conn, run_id, 1, files, config=json.loads(files["config.json"].read_text()))
        row = conn.execute("SELECT job_id FROM keyhole.run WHERE id = %s", (run_id,)).fetchone()
    assert row is not None
    job = keyhole.submit(
        "gradient_scale", model=f"run:{run_id}@1", dataset=api.dataset, sequences=1, length=40, label="reader"
    )
    refused = admin.delete(f"/v1/jobs/{row[0]}")
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert f"Job {job.id} is to read checkpoint {checkpoint}" in refused.json()["detail"]
    assert keyhole.checkpoint(checkpoint).verify().files == 2
    job.cancel()
    assert admin.delete(f"/v1/jobs/{row[0]}").status_code == 204
    with pytest.raises(KeyholeError, match=f"There is no checkpoint {checkpoint}"):
        keyhole.checkpoint(checkpoint)


def test_the_checkpoint_that_an_open_run_would_go_on_from_is_not_deleted(api, keyhole, tmp_path):
    (tmp_path / "resume.safetensors").write_bytes(b"state")
    with psycopg.connect(api.database_url, autocommit=True) as conn:
        run_id = new_run(conn, JobState.RUNNING, "goes on")
        checkpoint = store(conn, run_id, 1, {"resume.safetensors": tmp_path / "resume.safetensors"})
    with pytest.raises(KeyholeError, match=f"Run {run_id} would go on from checkpoint {checkpoint}"):
        keyhole.checkpoint(checkpoint).delete()


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
def test_a_damaged_state_of_a_run_that_has_ended_says_what_to_do_and_can_be_deleted(api, keyhole, tmp_path, state):
    (tmp_path / "resume.safetensors").write_bytes(f"state of {state}".encode())
    with psycopg.connect(api.database_url, autocommit=True) as conn:
        checkpoint = store(
            conn, new_run(conn, state, f"damaged {state}"), 1, {"resume.safetensors": tmp_path / "resume.safetensors"}
        )
        conn.execute(
            "UPDATE keyhole.piece SET content = set_byte(content, 0, 0) WHERE sha256 IN (SELECT piece.sha256 "
            "FROM keyhole.checkpoint_piece AS piece JOIN keyhole.checkpoint_file AS file ON file.id = file_id "
            "WHERE checkpoint_id = %s)",
            (checkpoint,),
        )
    found = keyhole.checkpoint(checkpoint)
    with pytest.raises(KeyholeError, match=r"of resume.safetensors, piece 0") as damaged:
        found.verify()
    assert "--force" in damaged.value.hint
    assert f"keyhole checkpoint-delete {checkpoint}" in damaged.value.hint
    found.delete()
    with pytest.raises(KeyholeError, match=f"There is no checkpoint {checkpoint}"):
        keyhole.checkpoint(checkpoint)


@pytest.mark.parametrize(("place", "step"), [("0", 0), ("first", 0), ("best", 10), ("last", 20)])
def test_a_job_on_a_place_of_a_run_is_pinned_to_its_checkpoint(api, keyhole, run, place, step):
    expected = next(each for each in keyhole.checkpoints(run=run) if each.step == step)
    job = keyhole.submit("gradient_scale", model=f"run:{run}@{place}", dataset=api.dataset, sequences=2, length=40)
    assert job.detail.model == f"checkpoint:{expected.id}"
    assert job.detail.model_identity == expected.identity
    assert job.detail.label == f"run:{run}@{step}"


def test_equal_models_by_two_names_are_one_job(api, keyhole, run):
    one, other = (
        keyhole.submit("gradient_scale", model=source, dataset=api.dataset, sequences=3, length=40)
        for source in (f"run:{run}@last", keyhole.checkpoint(f"run:{run}@last").source)
    )
    assert other.id == one.id


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("run:{run}", "names all checkpoints of the run"),
        ("run:{run}@7", "has no checkpoint at 7"),
        ("run:99999@last", "There is no run 99999"),
        ("run:9999999999@last", "There is no run 9999999999"),
        ("checkpoint:99999", "There is no checkpoint 99999"),
        ("checkpoint:99999999999", "There is no checkpoint 99999999999"),
    ],
)
def test_what_is_no_checkpoint_is_refused_with_what_there_is(api, keyhole, run, source, message):
    with pytest.raises(KeyholeError, match=message) as refused:
        keyhole.submit("gradient_scale", model=source.format(run=run), dataset=api.dataset, sequences=1, length=40)
    assert "keyhole" in refused.value.hint or "0, 10, 20" in refused.value.hint or "@last" in refused.value.hint


def test_a_run_is_a_series_of_its_steps(api, keyhole, run):
    suite = keyhole.submit_suite(
        probes={"gradient_scale": {"sequences": 1, "length": 40}}, model=f"run:{run}", dataset=api.dataset, label="all"
    )
    assert [job.label for job in suite.detail.members] == [f"all · run:{run}@{step}" for step in (0, 10, 20)]


def test_checkpoints_are_compared_by_run_and_step(api, keyhole, run):
    suite = keyhole.submit_suite(
        probes={"pattern_stability": {"sequences": 1, "length": 40}},
        model=[f"run:{run}@first", f"run:{run}@10", f"checkpoint:{keyhole.checkpoint(f'run:{run}@last').id}"],
        dataset=api.dataset,
    )
    (job,) = suite.detail.members
    assert (job.parameters["run"], job.parameters["step"]) == (f"run {run}", 0)
    assert [(each["run"], each["step"]) for each in job.parameters["checkpoints"]] == [
        (f"run {run}", 10),
        (f"run {run}", 20),
    ]


def test_a_folder_of_models_is_imported_as_a_run_and_read_where_it_lies(api, keyhole, tmp_path):
    home = Path(api.model.removeprefix("path:")).parent
    for step in (1000, 200):
        write_model(home / "imported" / f"step-{step}", vocab_size=256 + step)
    imported = keyhole.import_run(f"path:{home}/imported/*", name="from elsewhere")
    assert [each.step for each in imported.checkpoints] == [200, 1000]
    assert (imported.origin, imported.state, imported.name) == ("imported", "imported", "from elsewhere")
    assert "stay where they are" in imported.note
    job = keyhole.submit("gradient_scale", model=f"run:{imported.id}@last", dataset=api.dataset, sequences=1, length=40)
    assert job.detail.model == f"path:{home}/imported/step-1000"
    found = keyhole.checkpoint(f"run:{imported.id}@first")
    assert (found.detail.source, found.detail.files) == (f"path:{home}/imported/step-200", [])
    with pytest.raises(KeyholeError, match="are not stored here"):
        found.export(tmp_path / "out")
    assert "nothing to verify" in complaint(api, "checkpoint", str(found.id), "--verify")
    (home / "imported" / "step-200" / "config.json").write_text(
        json.dumps({"model_type": "llama", "num_hidden_layers": 1, "vocab_size": 7})
    )
    with pytest.raises(KeyholeError) as changed:
        keyhole.submit("gradient_scale", model=found.source, dataset=api.dataset, sequences=1, length=40)
    assert changed.value.code is ErrorCode.MODEL_CHANGED


def test_models_without_a_step_or_of_one_step_are_not_imported(api, keyhole):
    home = Path(api.model.removeprefix("path:")).parent
    write_model(home / "twice" / "a-5")
    write_model(home / "twice" / "b-5")
    with pytest.raises(KeyholeError, match=r"a-5 and path:.*b-5 are both step 5"):
        keyhole.import_run(f"path:{home}/twice/*")
    (home / "twice" / "a-5" / "config.json").write_text("{")
    with pytest.raises(KeyholeError, match=r"In path:.*/twice/a-5: config.json is not valid JSON"):
        keyhole.import_run(f"path:{home}/twice/*")
    with pytest.raises(KeyholeError, match="'tiny' has no number"):
        keyhole.import_run(api.model)
    with pytest.raises(KeyholeError, match="cannot be imported"):
        keyhole.import_run("checkpoint:1")


def test_the_commands_list_show_export_and_delete(api, tmp_path):
    run = three_steps(api, tmp_path)
    listed = json.loads(command(api, "checkpoints", "--run", str(run), "--json"))
    assert [each["step"] for each in listed] == [20, 10, 0]
    assert f"run:{run}@10" in command(api, "checkpoints", "--run", str(run))
    shown = command(api, "checkpoint", f"run:{run}@best", "--verify")
    assert "model.safetensors" in shown and "3.0000 nats" in shown
    command(api, "checkpoint-export", f"run:{run}@last", "--to", str(tmp_path / "out"))
    assert (tmp_path / "out" / "model.safetensors").is_file()
    deleted = json.loads(command(api, "checkpoint-delete", f"run:{run}@last", "--yes", "--json"))
    assert deleted == {"id": listed[0]["id"], "deleted": True}
