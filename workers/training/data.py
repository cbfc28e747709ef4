"""What a run is trained and judged on: token sequences in the order of a seed, and held-out ones.

The first ``validation_sequences`` sequences of the data set are held out, or those of another data set are taken. The
rest is passed over in epochs, each in another order; which sequences a step gets follows from seed and step alone.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Int64
from transformers import PreTrainedTokenizerFast

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.sources import parse_dataset_source
from services.contracts.training.tokenizer_choice import require_tokenizer_fits
from services.contracts.training.training import TrainingParameters
from services.sources import ResolvedDataset, resolve_dataset
from workers.training import tokens
from workers.training.choosing_tokenizer import choose
from workers.training.sequences import TokenSequences
from workers.training.token_bytes import bytes_of_tokens


@dataclass(frozen=True)
class TrainingData:
    training: TokenSequences
    validation: Int64[np.ndarray, "sequence position"]
    validation_bytes: int | None  # UTF-8 bytes of the predicted validation tokens; None where no tokenizer tells
    tokenizer: PreTrainedTokenizerFast | None  # goes with every checkpoint
    identity: str  # of the data set, as resolve_dataset gives it
    validation_identity: str  # of the data set that the validation sequences are from


def prepare(
    source: str,
    parameters: TrainingParameters,
    *,
    model_tokenizer: PreTrainedTokenizerFast | None,
    vocabulary_size: int,
    settings: Settings,
    run_tokenizer: PreTrainedTokenizerFast | None = None,
) -> TrainingData:
    """Find or make the tokens of a run. ``run_tokenizer`` is the run's own, out of a checkpoint: it is taken as it is.

    Raises KeyholeError: as resolve_dataset and load_model do, and dataset_invalid, dataset_too_short,
    dataset_changed, tokens_out_of_range.
    """
    resolved = resolve_dataset(source, settings)
    held_out = _other(resolved, parameters.data.validation_dataset, settings)
    tokenizer = run_tokenizer or choose(
        parameters.data.tokenizer,
        resolved,
        model_tokenizer=model_tokenizer,
        vocabulary_size=vocabulary_size,
        settings=settings,
    )
    count = parameters.data.validation_sequences
    here = 0 if held_out else count  # sequences at the start of the data set that are never trained on
    found = _sequences(resolved, parameters, here, tokenizer, vocabulary_size, settings)
    training = found.between(here, here + (parameters.data.sequences or len(found)))
    _require_enough(training, found, parameters, here, resolved)
    training.look_at_start()
    if held_out is None:
        validation = found
    else:
        validation = _sequences(held_out, parameters, count, tokenizer, vocabulary_size, settings, validation=True)
        if len(validation) < count:
            raise _too_short(held_out.source, len(validation), count, "data.validation_sequences")
    sequences = validation.take(np.arange(count))
    sizes = None if tokenizer is None else bytes_of_tokens(tokenizer, vocabulary_size)
    return TrainingData(
        training,
        sequences,
        None if sizes is None else int(sizes[sequences[:, 1:]].sum()),
        tokenizer,
        resolved.identity,
        (held_out or resolved).identity,
    )


def sequences_of_step(
    data: TrainingData, parameters: TrainingParameters, step: int
) -> Int64[np.ndarray, "sequence position"]:
    """The sequences of step ``step``, 0-based, over all processes; raises KeyholeError (tokens_out_of_range)."""
    return data.training.take(numbers_of_step(len(data.training), parameters, step))


def numbers_of_step(sequences: int, parameters: TrainingParameters, step: int) -> Int64[np.ndarray, " sequence"]:
    """Which of so many training sequences a step gets: each epoch goes through all of them in an order of its own."""
    first = step * parameters.sequences_per_step
    epochs, places = np.divmod(np.arange(first, first + parameters.sequences_per_step, dtype=np.int64), sequences)
    orders = {int(epoch): _order(sequences, parameters.seed, int(epoch)) for epoch in np.unique(epochs)}
    return np.array([orders[int(epoch)][place] for epoch, place in zip(epochs, places, strict=True)], np.int64)


@lru_cache(maxsize=2)  # a step may go over the end of an epoch
def _order(sequences: int, seed: int, epoch: int) -> Int64[np.ndarray, " sequence"]:
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(sequences)


def _sequences(
    resolved: ResolvedDataset,
    parameters: TrainingParameters,
    here: int,
    tokenizer: PreTrainedTokenizerFast | None,
    vocabulary_size: int,
    settings: Settings,
    *,
    validation: bool = False,
) -> TokenSequences:
    """The sequences of a data set, as many as are asked for where that is known.

    From the hub no more is read than the steps need; what lies on this machine is taken whole.
    """
    source = parse_dataset_source(resolved.source)
    length = parameters.length
    wanted = 0 if validation else parameters.data.sequences
    if wanted is None and source.form == "hf":
        wanted = parameters.steps * parameters.sequences_per_step
    if source.form == "tokens":
        parts = tokens.token_parts(resolved, length)
    else:
        tokenizer = _required(tokenizer, resolved)
        number = None if wanted is None else (here + wanted) * length
        parts = tokens.text_parts(resolved, tokenizer, number, length, settings)
    found = TokenSequences(parts, length, vocabulary_size)
    return found if wanted is None else found.between(0, here + wanted)


def _required(tokenizer: PreTrainedTokenizerFast | None, resolved: ResolvedDataset) -> PreTrainedTokenizerFast:
    if tokenizer is None:  # of the validation data, where the training data are tokens
        require_tokenizer_fits("none", resolved.source, None)
    assert tokenizer is not None, "text without a tokenizer is refused"
    return tokenizer


def _other(resolved: ResolvedDataset, source: str | None, settings: Settings) -> ResolvedDataset | None:
    """The data set of the validation sequences, if it is another than the training's."""
    if source is None:
        return None
    other = resolve_dataset(source, settings)
    if other.identity == resolved.identity:
        return None
    if parse_dataset_source(other.source).form == "tokens" and (both := set(other.files) & set(resolved.files)):
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"{min(both)} is in the training data, {resolved.source}, and in data.validation_dataset, {source}.",
            "Name a pattern without it to train on, or leave data.validation_dataset out: the first sequences are "
            "then held out.",
        )
    return other


def _require_enough(
    training: TokenSequences,
    found: TokenSequences,
    parameters: TrainingParameters,
    here: int,
    resolved: ResolvedDataset,
) -> None:
    asked = parameters.data.sequences or 1
    if len(training) < asked:
        what = "data.validation_sequences" if here >= len(found) else "data.sequences"
        raise _too_short(resolved.source, len(found), here + asked, what)


def _too_short(source: str, there: int, needed: int, what: str) -> KeyholeError:
    return KeyholeError(
        ErrorCode.DATASET_TOO_SHORT,
        f"{source} has {there:,} sequences of this length; {needed:,} are needed, validation included.",
        f"Lower {what} or length, or use more data.",
    )
