"""Sequences out of token files: a 1-D array is cut end to end, rows of a 2-D array are sequences.

A 1-D file is one document and each row of a 2-D file is one: where documents ended is not in these files.
"""

from pathlib import Path

import numpy as np

from services.contracts.errors import ErrorCode, KeyholeError
from services.sources.token_files import open_token_file
from workers.data.packing import Packer, too_short
from workers.data.token_set import Document, TokenIds


def read_token_file(
    path: Path, source: str, vocabulary_size: int, sequences: int, length: int
) -> tuple[TokenIds, tuple[Document, ...]]:
    """Raises KeyholeError: dataset_invalid, dataset_too_short or tokens_out_of_range (value and position)."""
    array = open_token_file(path)
    if array.ndim == 1:
        taken = array[: sequences * length]
        if taken.size < sequences * length:
            raise too_short(source, int(array.size), sequences, length)
        _require_in_vocabulary(taken, vocabulary_size, path)
        packer = Packer(sequences, length)
        packer.add(taken.astype(np.int32), 0, path.name)
        return packer.packed(source)
    rows, width = array.shape
    if width < length:
        raise KeyholeError(
            ErrorCode.DATASET_TOO_SHORT,
            f"Rows of {path.name} have {width:,} tokens; sequences of {length:,} were asked for.",
            f"Set length to at most {width}.",
        )
    if rows < sequences:
        raise KeyholeError(
            ErrorCode.DATASET_TOO_SHORT,
            f"{path.name} has {rows:,} rows; {sequences:,} sequences were asked for.",
            f"Set sequences to at most {rows}.",
        )
    taken = array[:sequences, :length]
    _require_in_vocabulary(taken, vocabulary_size, path)
    documents = tuple(Document(row, 0, length, row, f"{path.name}: row {row}") for row in range(sequences))
    return np.ascontiguousarray(taken, np.int32), documents


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
