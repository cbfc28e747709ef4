"""Data of runs: the order of a seed, held-out sequences that are never trained on, refusals that say what to set."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.training.training import TrainingParameters
from services.sources.token_files import BIN_MAGIC
from tests.unit.workers.data.tokenizers_for_tests import byte_tokenizer
from workers.training import sequences as sequences_module
from workers.training.data import TrainingData, numbers_of_step, prepare, sequences_of_step
from workers.training.sequences import Part, TokenSequences

LENGTH = 8
BYTES = byte_tokenizer()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "data").mkdir()
    return Settings(home=tmp_path)


def asked(data: dict[str, Any] | None = None, **changed: Any) -> TrainingParameters:
    held_out = {"validation_sequences": 4}
    return TrainingParameters.model_validate(
        {"length": LENGTH, "sequences_per_step": 6, "steps": 10, "data": held_out | (data or {}), **changed}
    )


def prepared(source: str, settings: Settings, data: dict[str, Any] | None = None, **named: Any) -> TrainingData:
    vocabulary, own = named.pop("vocabulary", 1000), named.pop("own", BYTES)
    return prepare(source, asked(data, **named), model_tokenizer=own, vocabulary_size=vocabulary, settings=settings)


def refusal(*arguments: Any, **named: Any) -> KeyholeError:
    with pytest.raises(KeyholeError) as refused:
        prepared(*arguments, **named)
    return refused.value


def numbered(settings: Settings, name: str, sequences: int, first: int = 0) -> None:
    """A token file in which each sequence is its own number, ``first`` added."""
    rows = np.repeat(np.arange(first, first + sequences), LENGTH).reshape(sequences, LENGTH)
    np.save(settings.home / "data" / name, rows)


def shard(settings: Settings, name: str, tokens: np.ndarray) -> None:
    """A file in the format of FineWeb's speed-run shards."""
    header = np.zeros(256, "<i4")
    header[:3] = BIN_MAGIC, 1, tokens.size
    (settings.home / "data" / name).write_bytes(header.tobytes() + tokens.astype("<u2").tobytes())


def all_of(data: TrainingData) -> np.ndarray:
    return data.training.take(np.arange(len(data.training)))


def test_the_first_sequences_are_held_out_and_never_come_in_any_step(settings: Settings) -> None:
    numbered(settings, "a.npy", 20)
    data, parameters = prepared("tokens:a.npy", settings), asked()
    assert data.validation[:, 0].tolist() == [0, 1, 2, 3]
    assert len(data.training) == 16
    seen = [sequences_of_step(data, parameters, step)[:, 0] for step in range(16)]  # 96 sequences: 6 epochs
    assert {int(number) for step in seen for number in step} == set(range(4, 20))


def test_each_epoch_goes_once_through_all_sequences_in_another_order(settings: Settings) -> None:
    parameters = asked()
    order = np.concatenate([numbers_of_step(16, parameters, step) for step in range(16)]).reshape(6, 16)
    assert all(sorted(epoch) == list(range(16)) for epoch in order.tolist())
    assert len({tuple(epoch) for epoch in order.tolist()}) == 6


def test_a_step_gets_the_same_sequences_whatever_came_before_and_others_with_another_seed() -> None:
    parameters = asked()
    forwards = [numbers_of_step(1000, parameters, step).tolist() for step in range(40)]
    assert [numbers_of_step(1000, parameters, step).tolist() for step in reversed(range(40))] == forwards[::-1]
    other = asked(seed=1)
    assert numbers_of_step(1000, other, 0).tolist() != forwards[0]


def test_the_order_is_what_it_was_in_earlier_releases() -> None:
    """A run that is resumed with another numpy must get the data it would have got."""
    assert numbers_of_step(1000, asked(), 0).tolist() == [459, 206, 222, 162, 711, 814]


def test_a_set_smaller_than_a_step_is_passed_over_several_times_in_it() -> None:
    numbers = numbers_of_step(4, asked(), 0)
    assert sorted(numbers[:4]) == [0, 1, 2, 3]
    assert len(numbers) == 6


def test_shards_of_a_pattern_are_one_data_set_in_the_order_of_their_numbers(settings: Settings) -> None:
    for number in (10, 2, 1):
        shard(settings, f"train_{number}.bin", np.full(3 * LENGTH + 5, number))
    shard(settings, "val_0.bin", np.full(9 * LENGTH, 99))
    data = prepared("tokens:train_*.bin", settings, {"validation_dataset": "tokens:val_0.bin"})
    assert all_of(data)[:, 0].tolist() == [1, 1, 1, 2, 2, 2, 10, 10, 10]  # what fills no sequence is dropped
    assert data.validation.tolist() == [[99] * LENGTH] * 4
    assert data.tokenizer is BYTES
    assert data.validation_identity != data.identity
    within = prepared("tokens:train_*.bin", settings)
    assert within.validation[:, 0].tolist() == [1, 1, 1, 2]
    assert all_of(within)[:, 0].tolist() == [2, 2, 10, 10, 10]


def test_token_files_are_mapped_and_not_read(settings: Settings) -> None:
    shard(settings, "a.bin", np.arange(1000) % 50)
    data = prepared("tokens:a.bin", settings)
    (part,) = data.training._parts
    bases = [part.token_ids]
    while (base := getattr(bases[-1], "base", None)) is not None:
        bases.append(base)
    assert any(isinstance(base, np.memmap) for base in bases)
    assert not part.token_ids.flags.owndata
    assert not part.token_ids.flags.writeable


def test_validation_from_the_training_data_itself_is_held_out_of_it(settings: Settings) -> None:
    numbered(settings, "a.npy", 20)
    data = prepared("tokens:a.npy", settings, {"validation_dataset": f"tokens:{settings.home}/data/a.npy"})
    assert data.validation[:, 0].tolist() == [0, 1, 2, 3]
    assert all_of(data)[:, 0].tolist() == list(range(4, 20))


def test_a_validation_file_among_the_training_files_is_refused(settings: Settings) -> None:
    for number in range(3):
        shard(settings, f"fineweb_{number}.bin", np.full(9 * LENGTH, number))
    error = refusal("tokens:fineweb_*.bin", settings, {"validation_dataset": "tokens:fineweb_0.bin"})
    assert error.code is ErrorCode.INVALID_REQUEST
    assert "fineweb_0.bin" in error.message


def test_as_many_sequences_as_asked_for_are_trained_on(settings: Settings) -> None:
    numbered(settings, "a.npy", 20)
    data = prepared("tokens:a.npy", settings, {"sequences": 5})
    assert all_of(data)[:, 0].tolist() == [4, 5, 6, 7, 8]


def test_text_is_packed_behind_its_held_out_part_and_bytes_are_those_of_the_predicted_tokens(
    settings: Settings,
) -> None:
    text = "Grüße aus dem Test. " * 20
    (settings.home / "data" / "a.jsonl").write_text('{"text": "' + text + '"}\n{"text": "more"}\n')
    data = prepared("file:a.jsonl", settings)
    ids = [*BYTES.encode(text), 256, *BYTES.encode("more"), 256]
    rows = np.array(ids[: len(ids) // LENGTH * LENGTH]).reshape(-1, LENGTH)
    assert data.validation.tolist() == rows[:4].tolist()
    assert all_of(data).tolist() == rows[4:].tolist()
    # one byte a token here, and the first token of each sequence is predicted by nobody
    assert data.validation_bytes == 4 * (LENGTH - 1)
    trained = prepared("file:a.jsonl", settings, {"tokenizer": "bpe:300"}, vocabulary=300)
    assert trained.tokenizer is not None
    assert trained.validation_bytes == sum(
        len(trained.tokenizer.decode(row[1:]).encode()) for row in trained.validation.tolist()
    )  # no sequence starts or ends within a character here
    again = prepared("file:a.jsonl", settings, {"tokenizer": "bpe:300"}, vocabulary=300)
    assert all_of(again).tolist() == all_of(trained).tolist()


def test_end_of_text_counts_no_bytes(settings: Settings) -> None:
    (settings.home / "data" / "a.jsonl").write_text('{"text": "abc"}\n' * 30)
    data = prepared("file:a.jsonl", settings)
    # abc· abc·  | abc· abc·: of the seven predicted tokens of a sequence two are ends
    assert data.validation_bytes == 4 * 5


def test_a_runs_own_tokenizer_is_taken_as_it_is(settings: Settings) -> None:
    (settings.home / "data" / "a.txt").write_text("some text " * 50)
    data = prepare(
        "file:a.txt",
        asked({"tokenizer": "bpe:300"}),
        model_tokenizer=None,
        vocabulary_size=300,
        settings=settings,
        run_tokenizer=BYTES,
    )
    assert data.tokenizer is BYTES
    assert not (settings.cache / "tokenizers").exists()


def test_a_prefix_of_a_larger_stream_is_the_same_data(settings: Settings) -> None:
    (settings.home / "data" / "a.jsonl").write_text("".join(f'{{"text": "row {row} of it"}}\n' for row in range(100)))
    alone = prepared("file:a.jsonl", settings, {"sequences": 10})
    prepared("file:a.jsonl", settings)  # makes the whole
    after = prepared("file:a.jsonl", settings, {"sequences": 10})
    assert all_of(after).tolist() == all_of(alone).tolist()


@pytest.mark.parametrize(
    ("source", "data", "code", "said"),
    [
        ("tokens:a.npy", {"validation_sequences": 20}, ErrorCode.DATASET_TOO_SHORT, "data.validation_sequences"),
        ("tokens:a.npy", {"sequences": 17}, ErrorCode.DATASET_TOO_SHORT, "data.sequences"),
        ("tokens:a.npy", {"validation_dataset": "tokens:b.npy"}, ErrorCode.DATASET_TOO_SHORT, "b.npy has 3"),
        ("file:a.txt", {"tokenizer": "none"}, ErrorCode.DATASET_INVALID, "data.tokenizer to auto"),
        ("file:a.txt", {}, ErrorCode.DATASET_TOO_SHORT, "use more data"),
    ],
)
def test_refusals_say_what_to_set(
    source: str, data: dict[str, Any], code: ErrorCode, said: str, settings: Settings
) -> None:
    numbered(settings, "a.npy", 20)
    numbered(settings, "b.npy", 3)
    (settings.home / "data" / "a.txt").write_text("short")
    error = refusal(source, settings, data)
    assert error.code is code
    assert said in str(error)


def test_rows_shorter_than_a_sequence_are_refused(settings: Settings) -> None:
    numbered(settings, "a.npy", 20)
    error = refusal("tokens:a.npy", settings, length=LENGTH + 1)
    assert error.code is ErrorCode.DATASET_TOO_SHORT
    assert f"Set length to at most {LENGTH}" in error.hint


def test_ids_beyond_the_vocabulary_are_refused_before_training_and_in_every_step(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbered(settings, "a.npy", 20)
    error = refusal("tokens:a.npy", settings, vocabulary=12, own=None)
    assert error.code is ErrorCode.TOKENS_OUT_OF_RANGE
    assert "a.npy has token id 12 in sequence" in error.message
    assert "?vocabulary=" in error.hint
    monkeypatch.setattr(sequences_module, "_LOOKED_AT", 2 * LENGTH)  # a file too large to be looked at whole
    data = prepared("tokens:a.npy", settings, vocabulary=12, own=None)
    with pytest.raises(KeyholeError, match=r"token id 1[2-9] in sequence"):
        for step in range(3):
            sequences_of_step(data, asked(), step)
    error = refusal("tokens:a.npy", settings, vocabulary=2, own=None)
    assert error.code is ErrorCode.TOKENS_OUT_OF_RANGE


def test_sequences_of_several_parts_are_numbered_through() -> None:
    parts = [Part(str(size), np.full((size, 3), size, np.uint16)) for size in (2, 1, 3)]
    found = TokenSequences([parts[0], Part("none", np.zeros((0, 3), np.int32)), *parts[1:]], 3, 10)
    assert found.shape == (6, 3)
    assert found.take(np.array([5, 0, 2, 1, 3]))[:, 0].tolist() == [3, 2, 1, 2, 3]
    middle = found.between(1, 4)
    assert middle.take(np.arange(3))[:, 0].tolist() == [2, 1, 3]
    assert found.between(1, 4).between(1, 2).take(np.array([0]))[:, 0].tolist() == [1]
    assert len(found.between(6, 9)) == 0


def test_an_order_is_drawn_evenly() -> None:
    """Where sequence 0 of 8 comes in 4,000 epochs: χ² with 7 degrees of freedom is above 30 once in 10⁴ seeds."""
    places = np.zeros(8)
    parameters = asked(sequences_per_step=8)
    for epoch in range(4000):
        places[numbers_of_step(8, parameters, epoch).tolist().index(0)] += 1
    assert float(((places - 500) ** 2 / 500).sum()) < 30
    assert math.isclose(places.sum(), 4000)
