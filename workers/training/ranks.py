"""The processes that share a run: each takes its part of every step's sequences, and sums go over all of them.

Each computes the gradient of its part of the step's loss, and the parts are added before the update, so that all have
the same weights without ever sending them. The sum is one of flat buffers cut in the order of the parameters, the same
in every step and after every resume: with torch's DistributedDataParallel buckets follow the order in which gradients
came in the process's first step, and with them the order of summation and the last bits of a resumed run.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

_BUFFER = 1 << 25  # numbers that are added at once; the buffer is what a sum needs besides


class PeerLostError(RuntimeError):
    """Another process of the run is gone: why, only that one, or whoever killed it, could tell."""


@dataclass(frozen=True)
class Ranks:
    """One process of ``world``; torch.distributed is set up where there are several (workers/launching.py)."""

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
        """Replace each tensor by its sum over all processes, which give tensors of the same shapes in the same order.

        Raises PeerLostError.
        """
        if self.world == 1:
            return
        for together in _buffers(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in together])
            with _peers():
                dist.all_reduce(flat)
            first = 0
            for tensor in together:
                tensor.copy_(flat[first : first + tensor.numel()].view_as(tensor))
                first += tensor.numel()

    def wait(self) -> None:
        """Return once all processes are here. Raises PeerLostError."""
        self.sum_([torch.zeros(1)])

    def told(self, value: Any = None) -> Any:
        """What the first process says, anything that JSON holds, in all of them. Raises PeerLostError."""
        if self.world == 1:
            return value
        data = json.dumps(value).encode() if self.first else b""
        size = torch.tensor([len(data)])
        with _peers():
            dist.broadcast(size, src=0)
            message = torch.zeros(int(size), dtype=torch.uint8)
            if self.first:
                message = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            dist.broadcast(message, src=0)
        return json.loads(bytes(message.tolist()))


def _buffers(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one dtype, in order, as many as fit a buffer."""
    together: list[Tensor] = []
    for tensor in tensors:
        size = sum(other.numel() for other in together) + tensor.numel()
        if together and (size > _BUFFER or tensor.dtype != together[0].dtype):
            yield together
            together = []
        together.append(tensor)
    if together:
        yield together


@contextmanager
def _peers() -> Iterator[None]:
    """What torch raises when a process at the other end has gone."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(str(error)) from error
