"""Tokens of a text data set in the cache: the same however often its maker died, and never trusted blindly."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.unit.workers.data.tokenizers_for_tests import byte_tokenizer
from workers.data import token_stream as module
from workers.data.packing import Packer, pack_text
from workers.data.pieces import Piece, document_pieces
from workers.data.token_stream import token_stream

BYTES = byte_tokenizer()
SEPARATOR = 256
DOCUMENTS = ["first", "", "   ", "Ünï\n" * 3, "a longer one " * 40, "\n", "last"]


class Text:
    """A data set that counts what is read, and whose reader may die at a piece."""

    def __init__(self, documents: list[str] = DOCUMENTS, dies_at: int | None = None) -> None:
        self.documents, self.dies_at, self.read = documents, dies_at, 0

    def pieces(self, first: int) -> Iterator[Piece]:
        for number in range(first, len(self.documents)):
            text = self.documents[number]
            parts = [text[start : start + 50] for start in range(0, len(text), 50)] or [""]
            for index, part in enumerate(parts):
                if self.read == self.dies_at:
                    raise KeyboardInterrupt
                self.read += 1
                yield Piece(number, None, part, last=index == len(parts) - 1)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an entry is made after every piece or two."""
    monkeypatch.setattr(module, "_BATCH_PIECES", 2)
    monkeypatch.setattr(module, "_ENTRY_TOKENS", 1)


def stream(path: Path, text: Text, tokens: int | None = None, tokenizer=BYTES) -> np.ndarray:
    return token_stream(path, text.pieces, tokenizer, tokens=tokens, unchanged=lambda: None)


def expected() -> list[int]:
    """As probes get it: the packer, over whole documents."""
    pieces = (piece for number, text in enumerate(DOCUMENTS) for piece in document_pieces(number, None, (text,)))
    packer = Packer(1, 100_000)
    pack_text(pieces, BYTES, SEPARATOR, packer)
    return np.concatenate(packer._runs).tolist()


def test_documents_stand_end_to_end_as_probes_get_them(tmp_path: Path) -> None:
    found = stream(tmp_path / "a.bin", Text())
    assert found.tolist() == expected()
    assert found.tolist().count(SEPARATOR) == 4  # blank documents are passed over
    assert found.dtype == np.uint16


def test_no_more_is_read_than_is_asked_for_and_more_is_appended_later(tmp_path: Path) -> None:
    path, whole = tmp_path / "a.bin", expected()
    first = Text()
    few = stream(path, first, 8)
    assert few.tolist() == whole[:8]
    assert first.read < 7
    more = stream(path, Text(), 200)
    assert more.tolist() == whole[:200]
    assert few.tolist() == whole[:8]  # the first map still shows what it showed
    again = Text()
    assert stream(path, again, 100).tolist() == whole[:100]
    assert again.read == 0
    assert stream(path, Text()).tolist() == whole
    assert stream(path, Text(), 10_000).tolist() == whole


@pytest.mark.parametrize("dies_at", range(1, 17))
def test_a_maker_that_died_anywhere_is_gone_on_from_without_a_trace(tmp_path: Path, dies_at: int) -> None:
    path = tmp_path / "a.bin"
    for reader in (Text(dies_at=dies_at), Text(dies_at=3), Text()):
        try:
            found = stream(path, reader)
        except KeyboardInterrupt:
            with path.open("ab") as file:
                file.write(b"written after the last entry")
    assert found.tolist() == expected()


def test_going_on_does_not_read_documents_again_that_are_done(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    with pytest.raises(KeyboardInterrupt):
        stream(path, Text(dies_at=14))
    entry = json.loads(path.with_suffix(".json").read_text())
    assert entry["documents"] == 4
    assert entry["pieces"] > 5
    rest = Text()
    stream(path, rest)
    assert rest.read == 13  # 11 of the fifth document, of which those in the file are passed over, and the last two


@pytest.mark.parametrize("damage", ["flipped", "short", "journal", "journal of another form", "gone"])
def test_damaged_tokens_are_made_again(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.bin"
    stream(path, Text())
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[10] ^= 1
        path.write_bytes(data)
    elif damage == "short":
        path.write_bytes(data[:-2])
    elif damage == "gone":
        path.unlink()
    else:
        path.with_suffix(".json").write_text("{" if damage == "journal" else '{"modified_ns": 1, "words": 3}')
    assert stream(path, Text()).tolist() == expected()


def test_a_copy_with_another_time_is_taken_for_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    stream(path, Text())
    path.touch()
    again = Text()
    assert stream(path, again).tolist() == expected()
    assert again.read == 0


def test_nothing_is_vouched_for_once_the_data_set_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"

    class ChangedError(Exception):
        pass

    def unchanged() -> None:
        raise ChangedError

    with pytest.raises(ChangedError):
        token_stream(path, Text().pieces, BYTES, tokens=None, unchanged=unchanged)
    assert not path.with_suffix(".json").exists()
    assert stream(path, Text(["other"])).tolist() == [*BYTES.encode("other"), SEPARATOR]


def test_a_data_set_without_text_gives_no_tokens(tmp_path: Path) -> None:
    assert stream(tmp_path / "a.bin", Text(["", " "])).tolist() == []


def test_vocabularies_beyond_16_bits_are_stored_in_32(tmp_path: Path) -> None:
    large = byte_tokenizer()
    large.add_tokens([f"token{number}" for number in range(1 << 16)])
    found = stream(tmp_path / "a.bin", Text(["token65535 x"]), tokenizer=large)
    assert found.dtype == np.uint32
    assert found.tolist()[0] == large.convert_tokens_to_ids("token65535") > 65_535
