"""Dataset sources resolve to identities of their bytes, and what is plainly unreadable is refused at submission."""

import argparse
import bz2
import gzip
import lzma
import platform
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.sources import builtin, resolve_dataset
from services.sources.text_files import text_format


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "data").mkdir()
    return Settings(home=tmp_path, data_roots=(tmp_path / "data",))


def _write(settings: Settings, name: str, data: bytes) -> Path:
    path = settings.data_roots[0] / name
    path.write_bytes(data)
    return path


def _refusal(source: str, settings: Settings) -> KeyholeError:
    with pytest.raises(KeyholeError) as refused:
        resolve_dataset(source, settings)
    return refused.value


def test_equal_bytes_have_equal_identities_and_other_bytes_or_fields_have_others(settings: Settings) -> None:
    for name, data in (("a.jsonl", b'{"text": "x"}'), ("b.jsonl", b'{"text": "x"}'), ("c.jsonl", b'{"text": "y"}')):
        _write(settings, name, data)
    a, b, c, field = (
        resolve_dataset(f"file:{name}", settings).identity
        for name in ("a.jsonl", "b.jsonl", "c.jsonl", "a.jsonl?field=body")
    )
    assert a == b
    assert len({a, c, field}) == 3


def test_the_same_bytes_read_as_another_format_are_another_data_set(settings: Settings) -> None:
    for name in ("a.txt", "a.jsonl"):
        _write(settings, name, b'{"text": "x"}\n')
    assert resolve_dataset("file:a.txt", settings).identity != resolve_dataset("file:a.jsonl", settings).identity


def test_a_resolved_source_resolves_to_itself(settings: Settings) -> None:
    _write(settings, "a.jsonl", b'{"body": "x"}')
    first = resolve_dataset("file:a.jsonl?field=body", settings)
    assert resolve_dataset(first.source, settings) == first
    odd = resolve_dataset("file:a.jsonl?field=a%26b%2B%25 c", settings)
    assert resolve_dataset(odd.source, settings) == odd
    docs = resolve_dataset("builtin:python-docs", settings)
    assert resolve_dataset(docs.source, settings) == docs


@pytest.mark.parametrize("source", ["file:../secret.txt", "file:/etc/passwd", "tokens:../x.npy"])
def test_a_path_out_of_the_data_roots_is_refused(settings: Settings, source: str) -> None:
    refusal = _refusal(source, settings)
    assert refusal.code == ErrorCode.INVALID_SOURCE
    assert "KEYHOLE_DATA_ROOTS" in refusal.hint


def test_a_link_out_of_the_data_roots_is_refused(settings: Settings) -> None:
    (settings.home / "secret.txt").write_text("secret")
    (settings.data_roots[0] / "link.txt").symlink_to(settings.home / "secret.txt")
    assert _refusal("file:link.txt", settings).code == ErrorCode.INVALID_SOURCE


def test_missing_empty_folder_and_unknown_kind_are_told_apart(settings: Settings) -> None:
    assert _refusal("file:no.txt", settings).code == ErrorCode.DATASET_NOT_FOUND
    _write(settings, "empty.txt", b"")
    assert "is empty" in _refusal("file:empty.txt", settings).message
    (settings.data_roots[0] / "folder.txt").mkdir()
    assert "is not a file" in _refusal("file:folder.txt", settings).message
    _write(settings, "paper.pdf", b"%PDF")
    assert ".parquet" in _refusal("file:paper.pdf", settings).hint


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("binary.txt", b"abc\x00def", "zero byte at byte 3"),
        ("utf16.txt", "hello".encode("utf-16"), "UTF-16"),
        ("binary.jsonl.gz", gzip.compress(b"abc\x00", mtime=0), "zero byte"),
        ("not.txt.gz", b"plain text", "damaged or cut short"),
        ("not.txt.xz", b"plain text", "damaged or cut short"),
        ("not.txt.bz2", b"plain text", "damaged or cut short"),
        ("not.txt.zst", b"plain text", "damaged or cut short"),
        ("not.zip", b"plain text", "damaged or cut short"),
        ("cut.parquet", b"PAR1 and no more", "Parquet"),
        ("tiny.parquet", b"P", "damaged or cut short"),
    ],
)
def test_what_cannot_be_the_text_it_claims_is_refused(settings: Settings, name: str, data: bytes, reason: str) -> None:
    _write(settings, name, data)
    refusal = _refusal(f"file:{name}", settings)
    assert refusal.code == ErrorCode.DATASET_INVALID
    assert reason in refusal.message


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: zstandard.ZstdCompressor().compress(data),
}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_packed_text_is_taken(settings: Settings, suffix: str) -> None:
    path = _write(settings, f"a.txt.{suffix}", COMPRESS[suffix](b"some text\n"))
    assert resolve_dataset(f"file:{path.name}", settings).file == path
    assert str(text_format(path)) == f"txt.{suffix}"


def test_a_parquet_file_is_taken(settings: Settings) -> None:
    pq.write_table(pa.table({"text": ["a"]}), settings.data_roots[0] / "a.parquet")
    assert ":parquet:field=text" in resolve_dataset("file:a.parquet", settings).identity


def test_an_archive_needs_a_readable_member_without_a_password(settings: Settings) -> None:
    path = settings.data_roots[0] / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("README.md", "hello")
        archive.writestr("__MACOSX/._a.txt", "x")
    assert "no member ends in" in _refusal("file:a.zip", settings).message
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("a.txt", "hello")
    assert resolve_dataset("file:a.zip", settings).file == path
    data = bytearray(path.read_bytes())
    for magic, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flag that says a member is encrypted
        for start in range(len(data)):
            if data[start : start + 4] == magic:
                data[start + at] |= 1
    path.write_bytes(data)
    assert "encrypted" in _refusal("file:a.zip", settings).message


def _bin(tokens: np.ndarray, announced: int | None = None, magic: int = 20240520) -> bytes:
    header = np.zeros(256, "<i4")
    header[:3] = magic, 1, tokens.size if announced is None else announced
    return header.tobytes() + tokens.astype("<u2").tobytes()


def test_token_files_are_taken(settings: Settings) -> None:
    _write(settings, "a.bin", _bin(np.arange(10)))
    np.save(settings.data_roots[0] / "a.npy", np.arange(10, dtype=np.uint16))
    for name in ("a.bin", "a.npy"):
        assert resolve_dataset(f"tokens:{name}", settings).identity.startswith("tokens:sha256:")


def test_damaged_and_foreign_token_files_are_refused(settings: Settings) -> None:
    folder = settings.data_roots[0]
    arrays = {
        "float.npy": (np.zeros(4), "float64"),
        "objects.npy": (np.array([{"a": 1}], dtype=object), "Python objects"),
        "three.npy": (np.zeros((2, 2, 2), np.int32), "(2, 2, 2)"),
        "none.npy": (np.zeros(0, np.int32), "(0,)"),
    }
    for name, (array, reason) in arrays.items():
        np.save(folder / name, array, allow_pickle=True)
        refusal = _refusal(f"tokens:{name}", settings)
        assert (refusal.code, reason in refusal.message) == (ErrorCode.DATASET_INVALID, True), refusal.message
    np.save(folder / "whole.npy", np.arange(1000))
    _write(settings, "cut.npy", (folder / "whole.npy").read_bytes()[:-8])
    _write(settings, "text.npy", b"hello there")
    _write(settings, "cut.bin", _bin(np.arange(10))[:-1])
    _write(settings, "more.bin", _bin(np.arange(10), announced=9))
    _write(settings, "negative.bin", _bin(np.arange(10), announced=-5))
    _write(settings, "foreign.bin", _bin(np.arange(10), magic=20240801))
    _write(settings, "short.bin", b"123")
    _write(settings, "a.txt", b"text")
    for name in ("cut.npy", "text.npy", "cut.bin", "more.bin", "negative.bin", "foreign.bin", "short.bin", "a.txt"):
        assert _refusal(f"tokens:{name}", settings).code == ErrorCode.DATASET_INVALID, name


def _shards(settings: Settings, *names: str) -> None:
    for number, name in enumerate(names):
        np.save(settings.data_roots[0] / name, np.arange(10) + number)


def test_a_pattern_is_one_data_set_of_files_in_the_order_of_their_numbers(settings: Settings) -> None:
    _shards(settings, "train_10.npy", "train_9.npy", "train_9b.npy", "val_0.npy")
    found = resolve_dataset("tokens:train_*.npy", settings)
    assert [path.name for path in found.files] == ["train_9.npy", "train_9b.npy", "train_10.npy"]
    assert resolve_dataset(found.source, settings) == found
    before = found.identity
    _shards(settings, "train_11.npy")
    assert resolve_dataset("tokens:train_*.npy", settings).identity != before
    (settings.data_roots[0] / "train_11.npy").unlink()
    assert resolve_dataset("tokens:train_*.npy", settings).identity == before


def test_a_pattern_finds_only_files_below_the_root(settings: Settings, tmp_path: Path) -> None:
    np.save(tmp_path / "secret.npy", np.arange(10))
    (settings.data_roots[0] / "train_1.npy").symlink_to(tmp_path / "secret.npy")
    assert _refusal("tokens:train_*.npy", settings).code is ErrorCode.INVALID_SOURCE
    assert _refusal("tokens:../*.npy", settings).code is ErrorCode.INVALID_SOURCE


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("tokens:nothing_*.npy", ErrorCode.DATASET_NOT_FOUND, "matches nothing_*.npy"),
        ("tokens:no-folder/*.npy", ErrorCode.DATASET_NOT_FOUND, "matches *.npy"),
        ("tokens:*/a.npy", ErrorCode.DATASET_NOT_FOUND, "a.npy"),
        ("tokens:*/*.npy", ErrorCode.INVALID_SOURCE, "last part alone"),
        ("file:*.txt", ErrorCode.DATASET_NOT_FOUND, "*.txt"),
        ("tokens:mixed_*", ErrorCode.DATASET_INVALID, "mixed_2.txt"),
    ],
)
def test_a_pattern_that_finds_nothing_to_read_is_refused(
    source: str, code: ErrorCode, said: str, settings: Settings
) -> None:
    _shards(settings, "mixed_1.npy")
    _write(settings, "mixed_2.txt", b"text")
    error = _refusal(source, settings)
    assert error.code is code
    assert said in str(error)


def test_a_name_with_brackets_is_no_class_of_characters(settings: Settings) -> None:
    _shards(settings, "a[1]_1.npy", "a1_1.npy")
    assert [path.name for path in resolve_dataset("tokens:a[1]_*.npy", settings).files] == ["a[1]_1.npy"]


def test_the_standard_library_is_its_modules_without_tests_and_tables(settings: Settings) -> None:
    modules = dict(builtin.python_library())
    assert modules["asyncio/base_events.py"].startswith('"""Base implementation of event loop.')
    assert modules["argparse.py"] == Path(argparse.__file__).read_text()
    assert list(modules) == sorted(modules)
    parts = {part for path in modules for part in path.split("/")}
    assert not parts & {"test", "tests", "site-packages", "dist-packages", "encodings", "pydoc_data"}
    assert sum(map(len, modules.values())) > 4_000_000
    found = resolve_dataset("builtin:python-library", settings)
    assert found.identity.startswith(f"builtin:python-library@{platform.python_version()}:sha256:")
    assert found.identity != resolve_dataset("builtin:python-docs", settings).identity


def test_a_python_without_source_code_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(KeyholeError, match="no source code") as refused:
        builtin.python_library()
    assert refused.value.code is ErrorCode.DATASET_NOT_FOUND
