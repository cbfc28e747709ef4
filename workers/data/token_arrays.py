"""Sequences out of token files: a 1-D array is cut end to end, rows of a 2-D array are sequences.

A 1-D file is one document and each row of a 2-D file is one: where documents ended is not in these files.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from services.contracts.errors import ErrorCode, KeyholeError
from services.sources.token_files import open_token_file
from workers.data.packing import too_short
from workers.data.token_set import Document, TokenIds


def read_token_files(
    paths: Sequence[Path], source: str, vocabulary_size: int, sequences: int, length: int
) -> tuple[TokenIds, tuple[Document, ...]]:
    """The first sequences of the files, none of which goes from one file into the next.

    Raises KeyholeError: dataset_invalid, dataset_too_short or tokens_out_of_range (value and position).
    """
    taken: list[np.ndarray] = []
    documents: list[Document] = []
    tokens = 0  # that there are, where too few
    for path in paths:
        array = open_token_file(path)
        rows = rows_of(array, path, length)[: sequences - len(documents)]
        _require_in_vocabulary(rows.reshape(-1) if array.ndim == 1 else rows, vocabulary_size, path)
        first = len(documents)
        for row in range(len(rows)):
            number, name = (first + row, f"{path.name}: row {row}") if array.ndim == 2 else (first, path.name)
            documents.append(Document(first + row, 0, length, number, name))
        taken.append(rows)
        tokens += array.size
        if len(documents) == sequences:
            return np.concatenate(taken).astype(np.int32), tuple(documents)
    if all(open_token_file(path).ndim == 2 for path in paths):
        raise KeyholeError(
            ErrorCode.DATASET_TOO_SHORT,
            f"{source} has {len(documents):,} rows; {sequences:,} sequences were asked for.",
            f"Set sequences to at most {len(documents)}.",
        )
    raise too_short(source, tokens, sequences, length)


def rows_of(array: np.ndarray, path: Path, length: int) -> np.ndarray:
    """Sequences as a view: of a 1-D array cut end to end, its remainder dropped; of a 2-D one the start of each row.

    Raises KeyholeError (dataset_too_short) where rows are shorter.
    """
    if array.ndim == 1:
        sequences = array.size // length
        return array[: sequences * length].reshape(sequences, length)
    if array.shape[1] < length:
        raise KeyholeError(
            ErrorCode.DATASET_TOO_SHORT,
            f"Rows of {path.name} have {array.shape[1]:,} tokens; sequences of {length:,} were asked for.",
            f"Set length to at most {array.shape[1]}.",
        )
    return array[:, :length]


def _require_in_vocabulary(token_ids: np.ndarray, vocabulary_size: int, path: Path) -> None:
    wrong = (token_ids < 0) | (token_ids >= vocabulary_size)
    if wrong.any():
        position = tuple(int(index) for index in np.argwhere(wrong)[0])
        where = f"position {position[0]:,}" if len(position) == 1 else f"row {position[0]:,}, position {position[1]:,}"
        raise KeyholeError(
            ErrorCode.TOKENS_OUT_OF_RANGE,
            f"{path.name} has token id {token_ids[position]} at {where}; the model's are 0 to {vocabulary_size - 1:,}.",
            "Use tokens that this model's tokenizer made.",
        )
