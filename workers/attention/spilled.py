"""What makes a model's attention patterns, on disk: so that those of many models can be compared layer by layer.

Of each layer and sequence the measured queries and their keys are written, in the model's dtype, of each layer also
which keys are in the rows where the model passes a mask. Scores are computed from them as from the layer itself.

Disk: layers × sequences × (heads × queries + kv_heads × keys) × d_head numbers of the model's dtype.
"""

import math
import tempfile
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from workers.attention import rows
from workers.attention.inputs import LayerAttention
from workers.models.loaded import Architecture

_ALIGNMENT = 64  # bytes; a tensor of any dtype can be read where another one ends


@dataclass(frozen=True)
class _Place:
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class TensorFile:
    """Tensors in a temporary file without a name, which is gone with the process however that ends.

    Written as a stream, so that a full disk is an OSError and no fault of a mapped page; read through a mapping, whose
    pages the system may drop at any time. It lies in the folder that TMPDIR names.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="keyhole-")  # noqa: SIM115  # closed by __exit__
        self._mapped: np.ndarray | None = None
        self.bytes = 0

    def __enter__(self) -> "TensorFile":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._mapped = None
        self._file.close()

    def append(self, tensor: Tensor) -> _Place:
        assert self._mapped is None, "all is written before anything is read"
        place = _Place(self.bytes, tensor.dtype, tuple(tensor.shape))
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        padding = -len(data) % _ALIGNMENT
        self._file.write(data.data)
        self._file.write(bytes(padding))
        self.bytes += len(data) + padding
        return place

    def read(self, place: _Place) -> Tensor:
        """The tensor as it was, in the mapping; a slice of it reads no more than its own pages."""
        if self._mapped is None:
            self._file.flush()
            self._mapped = np.memmap(self._file, np.uint8, "c")  # copy on write: torch wants memory it may write to
        size = math.prod(place.shape) * place.dtype.itemsize
        data = torch.from_numpy(self._mapped[place.offset : place.offset + size])
        return data.view(place.dtype).view(place.shape)


@dataclass
class _Layer:
    scaling: float
    softcap: float | None
    sinks: Tensor | None
    mask: _Place | None  # [1, masks, query, key], the same for every sequence: there is no padding


class SpilledModel:
    """One model's queries and keys of the measured queries, in a TensorFile of its own."""

    def __init__(self, file: TensorFile, queries: range, device: torch.device) -> None:
        self._file, self._queries, self.device = file, queries, device
        self._kept: dict[int, _Place] = {}
        self._layers: dict[int, _Layer] = {}
        self._scored: dict[tuple[int, int], tuple[_Place, _Place]] = {}  # query and key by layer and sequence

    def store(self, attention: LayerAttention, first_sequence: int) -> None:
        """Write a layer's part, for the sequences from ``first_sequence`` on that its batch holds."""
        width = self._queries[-1] + 1
        index = rows.as_index(self._queries)
        if attention.layer not in self._layers:
            mask = None if attention.mask is None else self._file.append(attention.mask[:1, :, index, :width])
            sinks = None if attention.sinks is None else attention.sinks.clone()
            self._layers[attention.layer] = _Layer(attention.scaling, attention.softcap, sinks, mask)
        for number, (query, key) in enumerate(zip(attention.query, attention.key, strict=True)):
            places = self._file.append(query[:, index]), self._file.append(key[:, :width])
            self._scored[attention.layer, first_sequence + number] = places

    def keep(self, layer: int, tensor: Tensor) -> None:
        """Write a tensor of the layer to be had again, on the CPU."""
        self._kept[layer] = self._file.append(tensor)

    def kept(self, layer: int) -> Tensor:
        return self._file.read(self._kept[layer])

    @property
    def bytes(self) -> int:
        return self._file.bytes

    def patterns(self, layer: int, sequence: int, block: range) -> Float[Tensor, "head query outcome"]:
        """Weights of the queries at the positions of ``block``: keys 0 to the last position, and then the sink.

        Rows add up to 1. The last outcome is the weight that a sink takes, 0 where there is none; keys that are not
        in a row have weight 0. float32, or float64 for a model of that dtype.
        """
        stored = self._layers[layer]
        first, width = self._queries.index(block[0]), block[-1] + 1
        part = slice(first, first + len(block))
        query, key = (self._file.read(place) for place in self._scored[layer, sequence])
        query, key = query[None, :, part].to(self.device), key[None, :, :width].to(self.device)
        scores = rows.capped_scores(query, key, stored.scaling, stored.softcap)
        if stored.mask is None:
            hidden = rows.later_keys(block, width, self.device)
        else:
            hidden = ~self._file.read(stored.mask)[:, :, part, :width].to(self.device)
        rows.hidden_columns(scores, hidden).masked_fill_(hidden, -torch.inf)
        normalizers = scores.logsumexp(-1)[0]
        pattern = scores.new_zeros(*scores.shape[1:3], width + 1)
        if stored.sinks is not None:
            sinks = stored.sinks.to(scores.dtype)[:, None]
            normalizers = torch.logaddexp(normalizers, sinks)
            pattern[..., width] = torch.exp(sinks - normalizers)
        torch.exp(scores[0].sub_(normalizers[..., None]), out=pattern[..., :width])
        return pattern


def spilled_bytes(architecture: Architecture, sequences: int, queries: range, itemsize: int) -> int:
    """Estimate of what one model writes, of ``itemsize`` bytes a number, with a byte for each entry of a mask."""
    width = queries[-1] + 1
    numbers = (architecture.heads * len(queries) + architecture.kv_heads * width) * architecture.d_head
    return architecture.layers * (sequences * numbers * itemsize + len(queries) * width)
