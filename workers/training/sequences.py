"""Token sequences that lie in one or several arrays, memory maps mostly, and are read only as they are asked for."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from services.contracts.errors import ErrorCode, KeyholeError

_LOOKED_AT = 1 << 24  # tokens of all parts together that are looked at before training starts


@dataclass(frozen=True)
class Part:
    name: str  # of a file, or the data set's
    token_ids: np.ndarray  # [sequence, position], whole numbers of any width


class TokenSequences:
    """Sequences of one length, numbered through all parts; every id that is handed out is below the vocabulary."""

    def __init__(self, parts: Sequence[Part], length: int, vocabulary_size: int) -> None:
        self._parts = [part for part in parts if len(part.token_ids)]
        self._ends = np.cumsum([len(part.token_ids) for part in self._parts], dtype=np.int64)
        self.length, self._vocabulary_size = length, vocabulary_size

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._parts else 0

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.length

    def between(self, first: int, stop: int) -> "TokenSequences":
        """Those from number ``first`` to before ``stop``, as views."""
        parts = []
        for part, end in zip(self._parts, self._ends, strict=True):
            start = int(end) - len(part.token_ids)
            low, high = max(first, start), min(stop, int(end))
            if low < high:
                parts.append(Part(part.name, part.token_ids[low - start : high - start]))
        return TokenSequences(parts, self.length, self._vocabulary_size)

    def take(self, numbers: np.ndarray) -> Int64[np.ndarray, "sequence position"]:
        """Copies of the sequences of these numbers; raises KeyholeError (tokens_out_of_range)."""
        taken = np.empty((len(numbers), self.length), np.int64)
        places = np.searchsorted(self._ends, numbers, side="right")
        for place in np.unique(places):
            part = self._parts[place]
            chosen = np.flatnonzero(places == place)
            rows = numbers[chosen] - (int(self._ends[place]) - len(part.token_ids))
            taken[chosen] = part.token_ids[rows]
            self._require_in_vocabulary(taken[chosen], rows, part)
        return taken

    def look_at_start(self) -> None:
        """Raise KeyholeError (tokens_out_of_range) for what the start of a part shows, before a run spends time."""
        most = max(1, _LOOKED_AT // self.length // max(1, len(self._parts)))  # sequences of each
        for part in self._parts:
            rows = np.arange(min(len(part.token_ids), most))
            for some in np.array_split(rows, max(1, len(rows) * self.length >> 20)):
                self._require_in_vocabulary(part.token_ids[some[0] : some[-1] + 1], some, part)

    def _require_in_vocabulary(self, token_ids: np.ndarray, rows: np.ndarray, part: Part) -> None:
        if token_ids.size == 0 or (token_ids.min() >= 0 and token_ids.max() < self._vocabulary_size):
            return
        row, position = np.argwhere((token_ids < 0) | (token_ids >= self._vocabulary_size))[0]
        raise KeyholeError(
            ErrorCode.TOKENS_OUT_OF_RANGE,
            f"{part.name} has token id {token_ids[row, position]} in sequence {int(rows[row]):,}, position "
            f"{position:,}; the model's are 0 to {self._vocabulary_size - 1:,}.",
            "Use tokens of this model's tokenizer, or train a model with ?vocabulary= at least one more than the "
            "largest id.",
        )
