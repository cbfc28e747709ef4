"""The processes that share a run: each takes its part of every step's sequences, and sums go over all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this process tells of the run."""
        return self.rank == 0

    def share(self, sequences: np.ndarray) -> np.ndarray:
        """This process's sequences [sequence, position]: a run of neighbours, as equal in number as can be."""
        return np.array_split(sequences, self.world)[self.rank]

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""
        assert self.world == 1, "one process has nothing to add"
