"""Sequences out of every source: right tokens, right documents, right refusals, and a cache that cannot lie."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.sources import builtin, resolve_dataset
from tests.unit.workers.data.tokenizers_for_tests import byte_tokenizer
from workers.data import TokenSet, read_sequences

BYTES = byte_tokenizer()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "data").mkdir()
    return Settings(home=tmp_path, data_roots=(tmp_path / "data",))


def _read(
    source: str, settings: Settings, sequences: int = 3, length: int = 50, vocabulary: int = 257, tokenizer=BYTES
):
    return read_sequences(
        source,
        tokenizer=tokenizer,
        vocabulary_size=vocabulary,
        sequences=sequences,
        length=length,
        settings=settings,
    )


def _refusal(*arguments, **named) -> KeyholeError:
    with pytest.raises(KeyholeError) as refused:
        _read(*arguments, **named)
    return refused.value


def _text(token_set: TokenSet) -> str:
    return BYTES.decode(token_set.token_ids.ravel().tolist())


def test_python_docs_are_its_topics_in_order_each_with_its_name(settings: Settings) -> None:
    docs = _read("builtin:python-docs", settings, sequences=40, length=500)
    joined = "".join(text + "<|endoftext|>" for _, text in builtin.python_docs())
    assert _text(docs) == joined[: len(_text(docs))]
    names = list(dict.fromkeys(part.name for part in docs.documents))
    assert names == [topic for topic, _ in builtin.python_docs()][: len(names)]
    assert len(names) > 3
    assert docs.identity == resolve_dataset("builtin:python-docs", settings).identity
    assert docs.tokenizer_sha256 is not None


def test_reading_again_and_from_the_cache_gives_the_same(settings: Settings) -> None:
    first = _read("builtin:python-docs", settings)
    assert len(list((settings.cache / "tokens").glob("*.npz"))) == 1
    cached = _read("builtin:python-docs", settings)
    shutil.rmtree(settings.cache)
    fresh = _read("builtin:python-docs", settings)
    assert first.fingerprint == cached.fingerprint == fresh.fingerprint
    assert first.documents == cached.documents
    assert np.array_equal(first.token_ids, cached.token_ids)


@pytest.mark.parametrize("damage", ["cut", "flipped", "replaced", "empty"])
def test_a_damaged_cache_entry_is_noticed_and_made_again(
    settings: Settings, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = _read("builtin:python-docs", settings)
    (path,) = (settings.cache / "tokens").glob("*.npz")
    data = bytearray(path.read_bytes())
    if damage == "replaced":
        with np.load(path) as entry:
            arrays = dict(entry)
        arrays["token_ids"] = arrays["token_ids"] + 1
        np.savez(path, **arrays)
    else:
        data[400] ^= 0xFF
        path.write_bytes({"cut": data[: len(data) // 2], "flipped": data, "empty": b""}[damage])
    again = _read("builtin:python-docs", settings)
    assert again.fingerprint == first.fingerprint
    assert "made again" in caplog.text
    caplog.clear()
    _read("builtin:python-docs", settings)
    assert "made again" not in caplog.text


def test_another_tokenizer_is_another_cache_entry(settings: Settings) -> None:
    with_separator = _read("builtin:python-docs", settings, length=3000)
    without = _read("builtin:python-docs", settings, length=3000, tokenizer=byte_tokenizer(separator=False))
    assert with_separator.tokenizer_sha256 != without.tokenizer_sha256
    assert with_separator.fingerprint != without.fingerprint


def test_a_file_is_read_by_its_field(settings: Settings) -> None:
    rows = [{"text": "no", "body": "a" * 40}, {"text": "no", "body": "b" * 60}]
    (settings.data_roots[0] / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    read = _read("file:a.jsonl?field=body", settings, sequences=2)
    assert _text(read) == "a" * 40 + "<|endoftext|>" + "b" * 59
    assert [(part.sequence, part.start, part.stop, part.document) for part in read.documents] == [
        (0, 0, 41, 0),
        (0, 41, 50, 1),
        (1, 0, 50, 1),
    ]


def test_text_needs_a_tokenizer_that_fits_the_model(settings: Settings) -> None:
    assert "no tokenizer.json" in _refusal("builtin:python-docs", settings, tokenizer=None).message
    refusal = _refusal("builtin:python-docs", settings, vocabulary=60)
    assert refusal.code == ErrorCode.TOKENS_OUT_OF_RANGE


def test_a_one_dimensional_token_file_is_cut_end_to_end(settings: Settings) -> None:
    np.save(settings.data_roots[0] / "a.npy", np.arange(200, dtype=np.uint16))
    read = _read("tokens:a.npy", settings)
    assert np.array_equal(read.token_ids, np.arange(150).reshape(3, 50))
    assert read.token_ids.dtype == np.int32
    assert {(part.document, part.stop - part.start) for part in read.documents} == {(0, 50)}
    without = _read("tokens:a.npy", settings, tokenizer=None)
    assert (without.fingerprint, without.tokenizer_sha256) == (read.fingerprint, None)


def test_rows_of_a_two_dimensional_token_file_are_sequences(settings: Settings) -> None:
    array = np.arange(240, dtype=np.int64).reshape(4, 60)
    np.save(settings.data_roots[0] / "a.npy", np.asfortranarray(array))
    read = _read("tokens:a.npy", settings)
    assert np.array_equal(read.token_ids, array[:3, :50])
    assert [part.document for part in read.documents] == [0, 1, 2]
    assert "length to at most 60" in _refusal("tokens:a.npy", settings, length=61).hint
    assert "sequences to at most 4" in _refusal("tokens:a.npy", settings, sequences=5).hint


def test_a_fineweb_shard_is_read_behind_its_header(settings: Settings) -> None:
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, 160
    tokens = (np.arange(160) * 7 % 250).astype("<u2")
    (settings.data_roots[0] / "a.bin").write_bytes(header.tobytes() + tokens.tobytes())
    assert np.array_equal(_read("tokens:a.bin", settings).token_ids.ravel(), tokens[:150])
    refusal = _refusal("tokens:a.bin", settings, sequences=4)
    assert refusal.code == ErrorCode.DATASET_TOO_SHORT
    assert "160 tokens: enough for 3 sequences of 50, not for 4" in refusal.message


@pytest.mark.parametrize(
    ("value", "dtype"), [(257, np.int32), (-1, np.int16), (1 << 40, np.int64), (60_000, np.uint16)]
)
def test_a_token_beyond_the_vocabulary_is_named_with_its_place(settings: Settings, value: int, dtype: type) -> None:
    flat = np.zeros(200, dtype)
    flat[[170, 123]] = value
    np.save(settings.data_roots[0] / "flat.npy", flat)
    np.save(settings.data_roots[0] / "rows.npy", flat.reshape(4, 50))
    refusal = _refusal("tokens:flat.npy", settings)
    assert refusal.code == ErrorCode.TOKENS_OUT_OF_RANGE
    assert f"token id {value} at position 123; the model's are 0 to 256" in refusal.message
    assert f"token id {value} at row 2, position 23" in _refusal("tokens:rows.npy", settings).message
    assert _read("tokens:flat.npy", settings, sequences=2).token_ids.max() == 0  # what is not used is not looked at


def test_too_few_tokens_for_one_sequence_say_what_length_would_do(settings: Settings) -> None:
    (settings.data_roots[0] / "a.txt").write_text("short")
    refusal = _refusal("file:a.txt", settings)
    assert refusal.code == ErrorCode.DATASET_TOO_SHORT
    assert "6 tokens" in refusal.message  # five letters and the separator
    assert "length to at most 6" in refusal.hint


def test_a_changed_file_has_another_identity_and_other_tokens(settings: Settings) -> None:
    path = settings.data_roots[0] / "a.txt"
    path.write_text("x" * 200)
    before = _read("file:a.txt", settings)
    path.write_text("y" * 200)
    after = _read("file:a.txt", settings)
    assert before.identity != after.identity
    assert before.fingerprint != after.fingerprint


def test_files_of_a_pattern_are_read_one_after_the_other_and_no_sequence_spans_two(settings: Settings) -> None:
    for number, size in ((1, 25), (2, 10), (10, 40)):
        np.save(settings.data_roots[0] / f"part_{number}.npy", np.full(size, number))
    found = _read("tokens:part_*.npy", settings, sequences=5, length=10)
    assert found.token_ids[:, 0].tolist() == [1, 1, 2, 10, 10]
    assert (found.token_ids == found.token_ids[:, :1]).all()
    assert [(part.sequence, part.name) for part in found.documents] == [
        (0, "part_1.npy"),
        (1, "part_1.npy"),
        (2, "part_2.npy"),
        (3, "part_10.npy"),
        (4, "part_10.npy"),
    ]
    assert len({part.document for part in found.documents}) == 3
    assert _refusal("tokens:part_*.npy", settings, sequences=8, length=10).code is ErrorCode.DATASET_TOO_SHORT


def test_the_standard_library_is_read_as_documents_named_by_their_paths(settings: Settings) -> None:
    found = _read("builtin:python-library", settings, sequences=4, length=2000)
    joined = "".join(text + "<|endoftext|>" for _, text in builtin.python_library()[:20])
    assert _text(found) == joined[: len(_text(found))]
    assert found.documents[0].name == builtin.python_library()[0][0]
