"""Whatever bytes or values a user's file holds, resolving it gives an answer or a KeyholeError, and nothing else."""

import bz2
import gzip
import io
import json
import lzma
import os
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zstandard

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.sources import resolve_dataset, resolve_model
from services.sources.text_files import members, unpacking
from tests.unit.services.sources.model_files import CONFIG, with_header, write_model

ROUNDS = 150  # of each kind of file, from fixed seeds
NASTY = (None, [], {}, [[1]], [{"a": 1}], -1, 0, 1e400, float("nan"), "x", "\ud800", True, 10**30, {"a": {"b": [1]}})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    for name in ("data", "models"):
        (tmp_path / name).mkdir()
    return Settings(home=tmp_path, data_roots=(tmp_path / "data",), model_roots=(tmp_path / "models",))


def _damaged(data: bytes, seed: str) -> Iterator[bytes]:
    """Copies with bytes changed, left out and put in, mostly near either end, where headers lie."""
    draw = random.Random(seed)
    for _ in range(ROUNDS):
        copy = bytearray(data)
        for _ in range(draw.choice([1, 1, 2, 5, 20])):
            edge = min(len(copy), 140)
            place = draw.choice([draw.randrange(len(copy)), draw.randrange(edge), len(copy) - 1 - draw.randrange(edge)])
            action = draw.random()
            if action < 0.7:
                copy[place] = draw.choice([0, 255, draw.randrange(256), copy[place] ^ 1 << draw.randrange(8)])
            elif action < 0.85 and len(copy) > 40:
                del copy[place : place + draw.randrange(1, 30)]
            else:
                copy[place:place] = draw.randbytes(draw.randrange(1, 8))
        yield bytes(copy)


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ä.txt", b"some text\n" * 50)
        archive.writestr("b.jsonl", b'{"text": "hi"}\n' * 50)
    return file.getvalue()


def _npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(500) % 64)
    return file.getvalue()


TEXT = b"hello world. \n" * 300
FILES = {
    "a.npy": _npy(),
    "a.bin": np.array([20240520, 1, 10, *[0] * 253], "<i4").tobytes() + bytes(20),
    "a.zip": _zip(),
    "a.txt.gz": gzip.compress(TEXT),
    "a.txt.bz2": bz2.compress(TEXT),
    "a.txt.xz": lzma.compress(TEXT),
    "a.txt.zst": zstandard.compress(TEXT),
}


@pytest.mark.parametrize("name", FILES)
def test_damaged_data_is_read_or_refused_as_invalid(settings: Settings, name: str) -> None:
    path = settings.data_roots[0] / name
    form = "tokens" if name.endswith((".npy", ".bin")) else "file"
    for data in _damaged(FILES[name], name):
        path.write_bytes(data)
        try:
            resolve_dataset(f"{form}:{name}", settings)
            if form == "file":
                with unpacking(path):
                    for member in members(path):
                        member.stream.read()
        except KeyholeError as refused:
            assert refused.code == ErrorCode.DATASET_INVALID


@pytest.mark.parametrize(
    "header", ["{'descr':'<i4', [[[", "{'descr': '<i4', 'fortran_order': False, 'shape': (True,)}"]
)
def test_a_header_that_is_no_python_literal_of_an_array_is_refused(settings: Settings, header: str) -> None:
    text = f"{header}\n".encode()
    data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64)
    (settings.data_roots[0] / "a.npy").write_bytes(data)
    with pytest.raises(KeyholeError) as refused:
        resolve_dataset("tokens:a.npy", settings)
    assert refused.value.code == ErrorCode.DATASET_INVALID


def test_a_member_whose_name_is_not_the_utf_8_it_claims_is_refused(settings: Settings) -> None:
    (settings.data_roots[0] / "a.zip").write_bytes(_zip().replace("ä".encode(), b"\xff\xfe"))
    with pytest.raises(KeyholeError, match="UnicodeDecodeError"):
        resolve_dataset("file:a.zip", settings)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_model_is_taken_or_refused(settings: Settings, name: str) -> None:
    folder = write_model(settings.model_roots[0] / "m")
    (folder / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {"a": 0}}, "added_tokens": []}')
    (folder / "tokenizer_config.json").write_text('{"eos_token": "a", "added_tokens_decoder": {"0": {"content": "a"}}}')
    for data in _damaged((folder / name).read_bytes(), name):
        (folder / name).write_bytes(data)
        try:
            resolve_model("path:m", settings)
        except KeyholeError as refused:
            assert refused.code in (ErrorCode.MODEL_REFUSED, ErrorCode.MODEL_UNSUPPORTED)


KEYS = [
    *CONFIG,
    *("text_config", "layer_types", "n_ctx", "n_positions", "is_encoder_decoder", "head_dim", "sliding_window"),
    *("_sliding_window_pattern", "rope_scaling", "num_key_value_heads", "num_experts", "_attn_implementation"),
]


@pytest.mark.parametrize("key", KEYS)
def test_a_value_of_another_type_in_a_config_is_taken_or_refused(settings: Settings, key: str) -> None:
    for value in NASTY:
        write_model(settings.model_roots[0] / "m", CONFIG | {key: value})
        try:
            resolve_model("path:m", settings)
        except KeyholeError as refused:
            assert refused.code in (ErrorCode.MODEL_REFUSED, ErrorCode.MODEL_UNSUPPORTED)
            refused.message.encode()


@pytest.mark.parametrize("key", ["dtype", "shape", "data_offsets"])
def test_a_value_of_another_type_in_a_safetensors_header_is_refused(settings: Settings, key: str) -> None:
    folder = write_model(settings.model_roots[0] / "m")
    for value in (*NASTY, ["F32"]):
        header = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | {key: value}}
        (folder / "model.safetensors").write_bytes(with_header(header, 8))
        with pytest.raises(KeyholeError) as refused:
            resolve_model("path:m", settings)
        assert refused.value.code == ErrorCode.MODEL_REFUSED


def test_an_index_that_names_a_file_no_system_can_hold_is_refused(settings: Settings) -> None:
    folder = write_model(settings.model_roots[0] / "m")
    (folder / "model.safetensors").unlink()
    for name in ("a" * 300 + ".safetensors", "ä" * 130 + ".safetensors", "a\x00.safetensors", "\ud800.safetensors"):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(KeyholeError, match="names the file") as refused:
            resolve_model("path:m", settings)
        refused.value.message.encode()


@pytest.mark.parametrize("name", ["a?b.npy", "a\nb.npy", "ends with a space ", b"raw\xff.npy"])
def test_a_link_to_a_name_that_no_source_can_hold_is_refused_at_submission(
    settings: Settings, name: str | bytes
) -> None:
    target = settings.data_roots[0] / os.fsdecode(name)
    target.write_bytes(FILES["a.npy"])
    (settings.data_roots[0] / "link.npy").symlink_to(target)
    folder = write_model(settings.model_roots[0] / f"{os.fsdecode(name)}\n")
    (settings.model_roots[0] / "link").symlink_to(folder)
    for resolve, text in ((resolve_dataset, "tokens:link.npy"), (resolve_model, "path:link")):
        with pytest.raises(KeyholeError, match="cannot stand in a source") as refused:
            resolve(text, settings)
        assert refused.value.code == ErrorCode.INVALID_SOURCE
        refused.value.message.encode()
