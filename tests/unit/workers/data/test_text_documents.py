"""Text files are read as their form says, packed or not, and every fault is named with its place."""

import bz2
import gzip
import json
import lzma
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from services.contracts.errors import ErrorCode, KeyholeError
from services.sources import text_files
from workers.data import lines
from workers.data.text_documents import file_pieces

TEXTS = ["First document.\nTwo lines.", "", "Zweites Dokument: äöü 漢字 🙂", "third"]


def _jsonl(texts: list[str | None], field: str = "text") -> bytes:
    return b"".join(
        json.dumps({"id": i, field: text}, ensure_ascii=False).encode() + b"\n" for i, text in enumerate(texts)
    )


def _parquet(path: Path, texts: list[str | None]) -> bytes:
    pq.write_table(pa.table({"id": list(range(len(texts))), "text": texts}), path, row_group_size=2)
    return path.read_bytes()


def _read(path: Path, field: str = "text") -> list[str]:
    documents: dict[int, str] = {}
    for piece in file_pieces(path, field):
        documents[piece.document] = documents.get(piece.document, "") + piece.text
    assert list(documents) == list(range(len(documents)))
    return list(documents.values())


def _refusal(path: Path, field: str = "text") -> KeyholeError:
    with pytest.raises(KeyholeError) as refused:
        _read(path, field)
    assert refused.value.code == ErrorCode.DATASET_INVALID
    assert path.name.split(".")[0] in refused.value.message
    return refused.value


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("form", ["txt", "jsonl", "parquet"])
def test_a_file_gives_the_documents_that_were_written(tmp_path: Path, form: str, suffix: str) -> None:
    text = "\n".join(TEXTS)
    data = {
        "txt": text.encode(),
        "jsonl": _jsonl([*TEXTS]),
        "parquet": _parquet(tmp_path / "plain", [*TEXTS]),
    }[form]
    path = tmp_path / f"a.{form}{suffix}"
    path.write_bytes(COMPRESS[suffix](data))
    assert _read(path) == ([text] if form == "txt" else TEXTS)


def test_an_archive_is_read_member_by_member_in_order_of_names(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("z/last.txt", "last")
        archive.writestr("README.md", "not read")
        archive.writestr("__MACOSX/._last.txt", "not read")
        archive.writestr("../b.jsonl", _jsonl(["one", "two"]))
        archive.writestr("c.parquet", _parquet(tmp_path / "plain", ["three"]))
        archive.writestr("empty.txt", "")
    assert _read(path) == ["one", "two", "three", "last"]
    assert next(file_pieces(path, "text")).name == "a.zip/../b.jsonl: line 1"
    assert not (tmp_path.parent / "b.jsonl").exists()


def test_null_texts_count_as_empty_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(_jsonl(["x", None]))
    _parquet(tmp_path / "a.parquet", ["x", None])
    assert _read(tmp_path / "a.jsonl") == _read(tmp_path / "a.parquet") == ["x", ""]


def test_half_of_a_surrogate_pair_reads_as_the_replacement_character_and_a_whole_pair_as_itself(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(rb'{"text": "a\ud800 b \ud83d\ude42 \ude42"}')
    assert _read(tmp_path / "a.jsonl") == ["a\ufffd b 🙂 \ufffd"]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfhello")
    assert _read(tmp_path / "a.txt") == ["hello"]


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("bad.txt", b"ok\nsecond \xe9t\xe9", "byte 0xe9 at byte 10, in line 2"),
        ("bom.txt", b"\xef\xbb\xbf\xe9", "byte 0xe9 at byte 3, in line 1"),
        ("bad.txt", b"ok\n" * 5000 + b"a\x00b", "zero byte at byte 15,001, in line 5,001"),
        ("bad.jsonl", b'{"text": "a"}\n\n{"text": ', "Line 3 of bad.jsonl is not JSON"),
        ("bad.jsonl", b'"a"\n', "Line 1 of bad.jsonl holds a str"),
        ("bad.jsonl", b'{"text": 3}\n', "has a int in the field 'text'"),
        ("bad.jsonl", b'{"body": "x", "id": 1}\n', "Line 1 of bad.jsonl has no field 'text'"),
        ("bad.jsonl", b"[" * 100_000 + b"\n", "Line 1 of bad.jsonl is not JSON"),
    ],
)
def test_a_fault_in_text_is_named_with_its_place(tmp_path: Path, name: str, data: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(data)
    assert reason in _refusal(tmp_path / name).message


def test_a_missing_field_names_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(_jsonl(["x"]))
    _parquet(tmp_path / "a.parquet", ["x"])
    for name in ("a.jsonl", "a.parquet"):
        assert "'id', 'text'" in _refusal(tmp_path / name, "body").hint


def test_a_parquet_column_of_numbers_is_refused(tmp_path: Path) -> None:
    _parquet(tmp_path / "a.parquet", ["x"])
    with pytest.raises(KeyholeError, match="has a int in the field 'id'"):
        _read(tmp_path / "a.parquet", "id")


def test_a_huge_line_is_refused_with_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINE_LIMIT", 1000)
    (tmp_path / "a.txt").write_bytes(b"x" * 999 + b"\n" + b"y" * 1001)
    assert "Line 2 of a.txt, from byte 1,000, is longer than 1,000 bytes" in _refusal(tmp_path / "a.txt").message


@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESS if suffix])
def test_a_packed_file_cut_short_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    whole = COMPRESS[suffix](b"".join(b"line %d of it\n" % (i * 7919 % 10007) for i in range(5000)))
    path.write_bytes(whole[: len(whole) // 2])
    assert "damaged or cut short" in _refusal(path).message


def test_frames_of_every_kind_are_walked_over(tmp_path: Path) -> None:
    """Several frames, with and without checksum and size, a run of one byte, a skippable frame, incompressible data."""
    compress = zstandard.ZstdCompressor(write_checksum=True).compress
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress
    hexadecimal = random.Random(0).randbytes(200_000).hex().encode()
    skippable = (0x184D2A53).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"notes"
    data = compress(b"a" * 300_000) + skippable + unsized(hexadecimal) + compress(b"") + unsized(b"end")
    path = tmp_path / "a.txt.zst"
    path.write_bytes(data)
    assert _read(path) == ["a" * 300_000 + hexadecimal.decode() + "end"]
    for lost in (1, 4, 10, len(data) - 1):
        path.write_bytes(data[:-lost])
        assert "damaged or cut short" in _refusal(path).message


def test_a_damaged_member_and_a_damaged_parquet_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("a.txt", "hello world")
    path.write_bytes(path.read_bytes().replace(b"hello world", b"hello w0rld", 1))
    assert "CRC" in _refusal(path).message
    data = bytearray(_parquet(tmp_path / "a.parquet", ["some text"] * 100))
    data[-200:-8] = bytes(192)
    (tmp_path / "a.parquet").write_bytes(data)
    assert "no sound Parquet file" in _refusal(tmp_path / "a.parquet").message


@pytest.mark.parametrize("name", ["bomb.jsonl.gz", "bomb.parquet.gz", "bomb.zip"])
def test_what_unpacks_to_far_more_than_its_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(text_files, "EXPANSION_FLOOR", 1 << 20)
    blank_lines = b"\n" * (20 << 20)  # packs about 1,000 times
    path = tmp_path / name
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.jsonl", blank_lines)
    else:
        path.write_bytes(gzip.compress(blank_lines))
    assert "unpacks to over 250 times" in _refusal(path).message
