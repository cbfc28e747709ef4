"""Read a dataset source as token sequences."""

from collections.abc import Iterator

from transformers import PreTrainedTokenizerFast

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.sources import DatasetSource, parse_dataset_source
from services.sources import ResolvedDataset, builtin, resolve_dataset
from workers.data import token_cache
from workers.data.packing import Packer, pack_text
from workers.data.pieces import Piece, document_pieces
from workers.data.text_documents import file_pieces
from workers.data.token_arrays import read_token_files
from workers.data.token_set import Document, TokenIds, TokenSet, fingerprint
from workers.models.tokenizer import separator_id, tokenizer_sha256


def read_sequences(
    source: str,
    *,
    tokenizer: PreTrainedTokenizerFast | None,
    vocabulary_size: int,
    sequences: int,
    length: int,
    settings: Settings,
) -> TokenSet:
    """``sequences`` sequences of ``length`` tokens from the start of a data set, all below ``vocabulary_size``.

    Text is tokenized and packed (workers/data/packing.py) and kept in a cache. Raises KeyholeError: as resolve_dataset
    does, and dataset_invalid, dataset_too_short, tokens_out_of_range, dataset_changed.
    """
    resolved = resolve_dataset(source, settings)
    parsed = parse_dataset_source(resolved.source)
    sha256 = None if tokenizer is None else tokenizer_sha256(tokenizer)
    if parsed.form == "tokens":
        token_ids, documents = read_token_files(resolved.files, resolved.source, vocabulary_size, sequences, length)
    elif tokenizer is None or sha256 is None:
        raise KeyholeError(
            ErrorCode.DATASET_INVALID,
            f"{source} is text, and the model has no tokenizer.json to read it with.",
            "Save the tokenizer with the model (save_pretrained), or use tokens:PATH.",
        )
    else:
        path = token_cache.cache_path(resolved.identity, sha256, sequences, length, settings)
        cached = token_cache.load(path, sequences, length)
        token_ids, documents = cached or _packed(parsed, resolved, tokenizer, sequences, length)
        _require_vocabulary(int(token_ids.max()), vocabulary_size, tokenizer)
        if cached is None:
            require_unchanged(resolved, settings)
            token_cache.save(path, token_ids, documents)
    require_unchanged(resolved, settings)
    print_of = fingerprint(token_ids, documents)
    return TokenSet(token_ids, documents, print_of, resolved.identity, resolved.source, sha256)


def _packed(
    source: DatasetSource, resolved: ResolvedDataset, tokenizer: PreTrainedTokenizerFast, sequences: int, length: int
) -> tuple[TokenIds, tuple[Document, ...]]:
    packer = Packer(sequences, length)
    pack_text(text_pieces(source, resolved), tokenizer, separator_id(tokenizer), packer)
    return packer.packed(resolved.source)


def text_pieces(source: DatasetSource, resolved: ResolvedDataset, first: int = 0) -> Iterator[Piece]:
    """The documents of a text source in order, from number ``first`` on, as pieces."""
    if source.form == "hf":
        from workers.data.hub_documents import hub_pieces  # importing datasets takes seconds

        yield from hub_pieces(source, first)
        return
    for piece in _local_pieces(source, resolved):
        if piece.document >= first:
            yield piece


def _local_pieces(source: DatasetSource, resolved: ResolvedDataset) -> Iterator[Piece]:
    if source.form == "file":
        assert resolved.file is not None
        yield from file_pieces(resolved.file, source.field)
    else:
        for document, (topic, text) in enumerate(builtin.DATASETS[source.name]()):
            yield from document_pieces(document, topic, (text,))


def _require_vocabulary(largest: int, vocabulary_size: int, tokenizer: PreTrainedTokenizerFast) -> None:
    if largest >= vocabulary_size:
        raise KeyholeError(
            ErrorCode.TOKENS_OUT_OF_RANGE,
            f"The tokenizer made token id {largest} ({tokenizer.convert_ids_to_tokens(largest)!r}); the model's are "
            f"0 to {vocabulary_size - 1:,}.",
            "The tokenizer does not belong to the model, or tokens were added to it and not to the model.",
        )


def require_unchanged(resolved: ResolvedDataset, settings: Settings) -> None:
    """A file may have been written while it was read."""
    if resolved.file is not None and resolve_dataset(resolved.source, settings).identity != resolved.identity:
        raise KeyholeError(
            ErrorCode.DATASET_CHANGED,
            f"{resolved.file} changed while it was read.",
            "Submit the job again when the file is at rest.",
        )
