"""Packing equals the plain thing: tokenize each document whole, join with separators, cut."""

from collections.abc import Iterator
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from services.contracts.errors import ErrorCode, KeyholeError
from services.sources import builtin
from tests.unit.workers.data.tokenizers_for_tests import bpe_tokenizer, byte_tokenizer
from workers.data import pieces as pieces_module
from workers.data.packing import Packer, pack_text
from workers.data.pieces import Piece, document_pieces
from workers.data.token_set import Document, fingerprint
from workers.models.tokenizer import separator_id

BYTES = byte_tokenizer()


def _pieces(texts: list[str]) -> Iterator[Piece]:
    return chain.from_iterable(document_pieces(index, f"d{index}", (text,)) for index, text in enumerate(texts))


def _packed(texts, tokenizer, sequences: int, length: int, separator: int | None):
    packer = Packer(sequences, length)
    pack_text(_pieces(texts), tokenizer, separator, packer)
    return packer.packed("test")


def _plain(texts: list[str], tokenizer, separator: int | None) -> tuple[list[int], list[int]]:
    """Every token and the document it belongs to."""
    tokens, owners = [], []
    for index, text in enumerate(texts):
        ids = [] if not text.strip() else tokenizer(text, add_special_tokens=False).input_ids
        if ids and separator is not None:
            ids = [*ids, separator]
        tokens += ids
        owners += [index] * len(ids)
    return tokens, owners


@given(st.lists(st.text(max_size=12), max_size=12), st.integers(1, 4), st.integers(2, 9), st.booleans())
def test_packing_equals_joining_and_cutting(texts: list[str], sequences: int, length: int, separated: bool) -> None:
    separator = 256 if separated else None
    tokens, owners = _plain(texts, BYTES, separator)
    needed = sequences * length
    if len(tokens) < needed:
        with pytest.raises(KeyholeError) as refused:
            _packed(texts, BYTES, sequences, length, separator)
        assert refused.value.code == ErrorCode.DATASET_TOO_SHORT
        assert f"enough for {len(tokens) // length} sequences" in refused.value.message
        return
    token_ids, documents = _packed(texts, BYTES, sequences, length, separator)
    assert token_ids.dtype == np.int32
    assert token_ids.tolist() == np.array(tokens[:needed]).reshape(sequences, length).tolist()
    covered = [[-1] * length for _ in range(sequences)]
    for part in documents:
        assert part.name == f"d{part.document}"
        for position in range(part.start, part.stop):
            assert covered[part.sequence][position] == -1
            covered[part.sequence][position] = part.document
    assert list(chain.from_iterable(covered)) == owners[:needed]


def test_a_long_document_in_pieces_has_the_tokens_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n\n".join(text for _, text in builtin.python_docs()[:30])
    tokenizer = bpe_tokenizer(text)
    whole = tokenizer(text, add_special_tokens=False).input_ids
    monkeypatch.setattr(pieces_module, "PIECE", 700)
    parts = list(document_pieces(0, "docs", (text[i : i + 1013] for i in range(0, len(text), 1013))))
    assert len(parts) > 100
    assert "".join(part.text for part in parts) == text
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    packer = Packer(1, len(whole))
    pack_text(iter(parts), tokenizer, None, packer)
    assert packer.packed("docs")[0][0].tolist() == whole


def test_text_without_any_break_is_cut_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces_module, "PIECE", 100)
    parts = list(document_pieces(0, None, ("x" * 1050,)))
    assert "".join(part.text for part in parts) == "x" * 1050
    assert max(len(part.text) for part in parts) <= 200


def test_no_more_documents_are_read_than_needed() -> None:
    read = 0

    def endless() -> Iterator[Piece]:
        nonlocal read
        while True:
            yield Piece(read, None, "hello world " * 100, last=True)
            read += 1

    packer = Packer(4, 100)
    pack_text(endless(), BYTES, 256, packer)
    assert packer.missing == 0
    assert read < 200


def test_too_little_data_says_what_would_be_possible() -> None:
    for texts, hint in (
        (["abcdefghij"], "sequences to at most 2"),
        (["ab"], "length to at most 2"),
        ([""], "more data"),
    ):
        with pytest.raises(KeyholeError) as refused:
            _packed(texts, BYTES, 3, 4 if texts != ["ab"] else 8, None)
        assert refused.value.code == ErrorCode.DATASET_TOO_SHORT
        assert hint in refused.value.hint


def test_the_separator_is_endoftext_then_eos_then_bos_then_none() -> None:
    assert separator_id(byte_tokenizer()) == 256
    plain = byte_tokenizer(separator=False)
    assert separator_id(plain) is None
    plain.bos_token = "A"
    assert separator_id(plain) == plain.get_vocab()["A"]
    plain.eos_token = "B"
    assert separator_id(plain) == plain.get_vocab()["B"]


def test_the_fingerprint_depends_on_tokens_shape_and_boundaries_and_not_on_names() -> None:
    token_ids = np.arange(12, dtype=np.int32).reshape(3, 4)
    whole = (Document(0, 0, 4, 0, "a"), Document(1, 0, 4, 0, "a"), Document(2, 0, 4, 0, "a"))
    split = (Document(0, 0, 2, 0, "a"), Document(0, 2, 4, 1, "a"), *whole[1:])
    renamed = tuple(Document(d.sequence, d.start, d.stop, d.document, "b") for d in whole)
    other = token_ids.copy()
    other[2, 3] += 1
    first = fingerprint(token_ids, whole)
    assert first == fingerprint(np.asfortranarray(token_ids), renamed)
    assert (
        len(
            {
                first,
                fingerprint(other, whole),
                fingerprint(token_ids.reshape(4, 3), whole),
                fingerprint(token_ids, split),
            }
        )
        == 4
    )
    assert first == "c0f31dfca1596e6b746ae42dce27db7e43a3803f4433be34537e86e1067d42c2"  # results name data by it


def test_a_text_that_the_tokenizer_has_no_token_for_is_the_tokenizers_fault() -> None:
    backend = Tokenizer(models.WordLevel({"hello": 0}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(KeyholeError, match="Missing \\[UNK\\] token") as refused:
        _packed(["hello world"], PreTrainedTokenizerFast(tokenizer_object=backend), 1, 2, None)
    assert refused.value.code == ErrorCode.MODEL_REFUSED
