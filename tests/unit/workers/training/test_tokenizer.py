"""Tokenizers of runs: the same however they were trained, whole after a round trip, refused where they do not fit."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.sources import resolve_dataset, resolve_model
from tests.unit.workers.data.tokenizers_for_tests import bpe_tokenizer, byte_tokenizer
from workers.data.pieces import Piece, document_pieces
from workers.models import load_model
from workers.models.tokenizer import separator_id, tokenizer_sha256
from workers.training import tokenizer as tokenizers
from workers.training.choosing_tokenizer import choose
from workers.training.token_bytes import bytes_of_tokens

TEXT = "The quick brown fox jumps over the lazy dog.\n    def naïve(x): return '日本' * 3\n" * 20


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    for name in ("data", "models"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "text.txt").write_text(TEXT)
    np.save(tmp_path / "data" / "tokens.npy", np.arange(500))
    return Settings(home=tmp_path)


def trained(settings: Settings, size: int = 300, text: str = TEXT, identity: str = "text") -> PreTrainedTokenizerFast:
    def pieces() -> Iterator[Piece]:
        return document_pieces(0, None, (text,))

    return tokenizers.trained_tokenizer(size, identity, pieces, lambda: None, settings)


def chosen(setting: str, dataset: str, settings: Settings, vocabulary: int = 300, own=None):
    found = resolve_dataset(dataset, settings)
    return choose(setting, found, model_tokenizer=own, vocabulary_size=vocabulary, settings=settings)


def refusal(call: Callable[[], object]) -> KeyholeError:
    with pytest.raises(KeyholeError) as refused:
        call()
    return refused.value


def test_training_twice_gives_the_same_tokenizer_whatever_the_threads(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from functools import partial\n"
        "from services.contracts.settings import Settings; from services.sources import resolve_dataset\n"
        "from workers.training.choosing_tokenizer import choose\n"
        "from workers.models.tokenizer import tokenizer_sha256\n"
        "settings = Settings(home=Path(sys.argv[1]))\n"
        "found = resolve_dataset('builtin:python-docs', settings)\n"
        "made = choose('bpe:1024', found, model_tokenizer=None, vocabulary_size=1024, settings=settings)\n"
        "print(tokenizer_sha256(made))"
    )
    digests = set()
    for number, changed in enumerate(({"RAYON_NUM_THREADS": "1"}, {"RAYON_NUM_THREADS": "8", "PYTHONHASHSEED": "7"})):
        digests.add(
            subprocess.run(
                [sys.executable, "-c", program, str(tmp_path / str(number))],
                env=os.environ | changed,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
    assert len(digests) == 1


def test_every_text_comes_back_and_documents_end_with_id_0(settings: Settings) -> None:
    made = trained(settings)
    for text in (TEXT, "\x00\x7f ￿ 𝄞 \r\n\t", "'" * 7):
        assert made.decode(made.encode(text)) == text
    assert separator_id(made) == 0
    assert made.convert_ids_to_tokens(0) == tokenizers.END_OF_TEXT
    assert len(made) == 300
    assert sorted(made.get_vocab().values()) == list(range(300))


def test_merges_are_those_of_the_algorithm_done_by_hand(settings: Settings) -> None:
    """Of "ab ab ab abc abc" the pair a b is counted 5 times, " ab" 4 times, "abc" 2 times."""
    made = trained(settings, size=260, text="ab ab ab abc abc")
    merges = json.loads(made.backend_tokenizer.to_str())["model"]["merges"]
    assert merges == [["a", "b"], ["Ġ", "ab"], ["Ġab", "c"]]


def test_a_text_with_fewer_pairs_than_asked_for_gives_a_smaller_vocabulary(settings: Settings) -> None:
    assert len(trained(settings, size=5000, text="aaaa bbbb")) < 270


def test_the_cache_is_used_and_made_again_where_it_is_damaged(settings: Settings) -> None:
    made = trained(settings)
    (folder,) = [path for path in (settings.cache / "tokenizers").iterdir() if path.is_dir()]
    again = trained(settings, text="other text, which is not read")
    assert tokenizer_sha256(again) == tokenizer_sha256(made)
    (folder / "tokenizer.json").write_text("{}")
    assert tokenizer_sha256(trained(settings)) == tokenizer_sha256(made)
    assert [path.name for path in (settings.cache / "tokenizers").iterdir() if path.name.startswith(".")] == []


def test_only_the_beginning_of_a_large_text_is_read(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "TRAINED_CHARACTERS", 1000)
    read = []

    def pieces() -> Iterator[Piece]:
        for number in range(100):
            read.append(number)
            yield Piece(number, None, "some text " * 30, last=True)

    tokenizers.trained_tokenizer(300, "large", pieces, lambda: None, settings)
    assert read == [0, 1, 2, 3]  # 300 characters each


def test_files_of_a_checkpoint_give_the_tokenizer_back_and_pass_as_a_models(settings: Settings) -> None:
    made = trained(settings)
    folder = settings.home / "models" / "checkpoint"
    config = GPT2Config(vocab_size=300, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(folder)
    files = tokenizers.tokenizer_files(made, folder)
    assert set(files) == {"tokenizer.json", "tokenizer_config.json"}
    assert tokenizer_sha256(tokenizers.tokenizer_of(folder)) == tokenizer_sha256(made)
    resolve_model("path:checkpoint", settings)  # the vetting
    loaded = load_model("path:checkpoint", device="cpu", dtype="float32", settings=settings)
    assert loaded.tokenizer is not None
    assert tokenizer_sha256(loaded.tokenizer) == tokenizer_sha256(made)
    # a pretrained model's tokenizer, saved again with the checkpoints of its fine-tuning
    again = settings.home / "models" / "again"
    GPT2LMHeadModel(config).save_pretrained(again)
    tokenizers.tokenizer_files(loaded.tokenizer, again)
    assert tokenizer_sha256(tokenizers.tokenizer_of(again)) == tokenizer_sha256(made)
    resolve_model("path:again", settings)


def test_auto_is_the_models_own_else_trained_on_text_else_none(settings: Settings) -> None:
    own = byte_tokenizer()
    assert chosen("auto", "file:text.txt", settings, own=own) is own
    made = chosen("auto", "file:text.txt", settings)
    assert made is not None
    assert len(made) == 300
    assert chosen("auto", "tokens:tokens.npy", settings) is None
    assert chosen("none", "tokens:tokens.npy", settings, own=own) is None
    assert refusal(lambda: chosen("none", "file:text.txt", settings)).code is ErrorCode.DATASET_INVALID


def test_another_models_tokenizer_is_taken_where_its_ids_fit(settings: Settings) -> None:
    folder = settings.home / "models" / "other"
    folder.mkdir(parents=True)  # neither config.json nor weights are needed
    error = refusal(lambda: chosen("path:other", "file:text.txt", settings))
    assert error.code is ErrorCode.MODEL_REFUSED
    assert "no tokenizer.json" in error.message
    theirs = bpe_tokenizer(TEXT, 350)
    theirs.save_pretrained(folder)
    taken = chosen("path:other", "tokens:tokens.npy", settings, vocabulary=400)
    assert tokenizer_sha256(taken) == tokenizer_sha256(theirs)
    error = refusal(lambda: chosen("path:other", "file:text.txt", settings, vocabulary=300))
    assert error.code is ErrorCode.TOKENS_OUT_OF_RANGE
    assert f"up to {len(theirs) - 1}" in error.message
    assert f"?vocabulary={len(theirs)}" in error.hint


@pytest.mark.parametrize(
    ("setting", "dataset", "code", "said"),
    [
        ("bpe:301", "file:text.txt", ErrorCode.TOKENS_OUT_OF_RANGE, "?vocabulary=301"),
        ("bpe:256", "file:text.txt", ErrorCode.TOKENS_OUT_OF_RANGE, "257 to 300"),
        ("bpe:300", "tokens:tokens.npy", ErrorCode.INVALID_REQUEST, "no text to train it on"),
        ("checkpoint:3", "file:text.txt", ErrorCode.INVALID_REQUEST, "bpe:SIZE"),
        ("hello", "file:text.txt", ErrorCode.INVALID_SOURCE, "'hello'"),
        ("path:nothing", "file:text.txt", ErrorCode.MODEL_NOT_FOUND, "nothing"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_to_set(
    setting: str, dataset: str, code: ErrorCode, said: str, settings: Settings
) -> None:
    error = refusal(lambda: chosen(setting, dataset, settings))
    assert error.code is code
    assert said in str(error)


def test_a_model_with_too_few_ids_for_every_byte_is_refused(settings: Settings) -> None:
    error = refusal(lambda: chosen("auto", "file:text.txt", settings, vocabulary=64))
    assert error.code is ErrorCode.TOKENS_OUT_OF_RANGE
    assert error.hint.startswith("Train a model with ?vocabulary=257")


def test_bytes_of_tokens_add_up_to_those_of_the_text(settings: Settings) -> None:
    for made in (trained(settings), byte_tokenizer(), bpe_tokenizer(TEXT)):
        sizes = bytes_of_tokens(made, len(made))
        assert sizes is not None
        assert int(sizes[made.encode(TEXT)].sum()) == len(TEXT.encode())
        assert sizes[separator_id(made)] == 0


def test_bytes_of_sentencepiece_tokens_count_its_spaces_and_single_bytes(settings: Settings) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {"<s>": 0, "<0xE2>": 1, "<0x82>": 2, "<0xAC>": 3, "▁": 4, "▁a": 5, "é": 6, "a": 7}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[("▁", "a")], byte_fallback=True, unk_token="<s>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    backend.add_special_tokens(["<s>"])
    made = PreTrainedTokenizerFast(tokenizer_object=backend)
    ids = backend.encode("a €é").ids
    sizes = bytes_of_tokens(made, 10)
    assert sizes is not None
    assert sizes.tolist() == [0, 1, 1, 1, 1, 2, 2, 1, 0, 0]
    assert int(sizes[ids].sum()) == len(" a €é".encode())  # it puts a space in front of every text


def test_a_tokenizer_of_another_kind_tells_no_bytes() -> None:
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    assert bytes_of_tokens(PreTrainedTokenizerFast(tokenizer_object=words), 2) is None
