"""Rows of the score matrix for a block of queries, so that no T×T matrix is ever held.

Everything is computed in float32 or better, whatever the model's dtype. Query heads that share a key/value head are
multiplied with it in one product; keys are never repeated.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workers.attention.inputs import AttentionInputs

# Scores of one block, in elements: on a CPU the block and its products should stay in the cache (measured at
# T = 1,024, nine heads, one core: 2**17 to 2**19 alike, 2**20 a third slower); a GPU wants few large kernels (assumed).
CPU_BLOCK = 2**18
GPU_BLOCK = 2**26


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor in float32, or unchanged if it is float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def query_blocks(positions: range, inputs: AttentionInputs, at_least: int = 1) -> Iterator[range]:
    """Cut ascending query positions into blocks whose score rows fit the block size of the device."""
    batch, heads = inputs.query.shape[:2]
    budget = CPU_BLOCK if inputs.query.device.type == "cpu" else GPU_BLOCK
    return blocks(positions, batch * heads, budget, at_least)


def blocks(positions: range, rows_of_a_query: int, budget: int, at_least: int = 1) -> Iterator[range]:
    """Cut ascending query positions into blocks of at most ``budget`` elements, and of one query at least.

    A row takes as many elements as it has keys, but ``at_least`` those that its user holds beside it.
    """
    first = 0
    while first < len(positions):
        # the last row of a block is the longest; a first guess from the block's first row, then one correction
        rows = max(1, budget // (rows_of_a_query * max(at_least, positions[first] + 1)))
        longest = positions[min(first + rows, len(positions)) - 1] + 1
        rows = max(1, min(rows, budget // (rows_of_a_query * max(at_least, longest))))
        yield positions[first : first + rows]
        first += rows


def grouped_product(
    rows: Float[Tensor, "batch head query d"], shared: Float[Tensor, "batch kv_head key d"]
) -> Float[Tensor, "batch head query key"]:
    """Dot products of each head's rows with the vectors of the key/value head it uses."""
    batch, heads, queries, width = rows.shape
    kv_heads, keys = shared.shape[1:3]
    grouped = rows.reshape(batch, kv_heads, heads // kv_heads * queries, width)
    return (grouped @ shared.transpose(-1, -2)).view(batch, heads, queries, keys)


def raw_scores(
    inputs: AttentionInputs, query: Float[Tensor, "batch head query d_key"], width: int
) -> Float[Tensor, "batch head query key"]:
    """Scores of the given query vectors with the first ``width`` keys, soft cap applied, nothing masked."""
    return capped_scores(query, inputs.key[:, :, :width], inputs.scaling, inputs.softcap)


def capped_scores(
    query: Float[Tensor, "batch head query d_key"],
    key: Float[Tensor, "batch kv_head key d_key"],
    scaling: float,
    softcap: float | None,
) -> Float[Tensor, "batch head query key"]:
    """Scores of queries with keys, soft cap applied, nothing masked."""
    scores = grouped_product(at_least_float32(query) * scaling, at_least_float32(key))
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    return scores


def hidden_keys(inputs: AttentionInputs, positions: range, width: int) -> Bool[Tensor, "masks heads query hidden"]:
    """True where a key is not in the query's row, for the last columns only: those before are in every row.

    Under a plain causal mask only the columns after the block's first query can be hidden; with a mask, all may be.
    """
    if inputs.mask is not None:
        return ~inputs.mask[:, :, as_index(positions), :width]
    return later_keys(positions, width, inputs.key.device)


def later_keys(positions: range, width: int, device: torch.device) -> Bool[Tensor, "masks heads query hidden"]:
    """The same of a plain causal mask: True where a key comes after the query."""
    queries = torch.arange(positions.start, positions[-1] + 1, positions.step, device=device)
    columns = torch.arange(positions[0] + 1, width, device=device)
    return (columns > queries[:, None])[None, None]


def scores(
    inputs: AttentionInputs, positions: range, hidden: Bool[Tensor, "masks heads query hidden"]
) -> Float[Tensor, "batch head query key"]:
    """Scores of the queries at ``positions`` (ascending) with keys 0 … last position; −∞ where the key is hidden."""
    width = positions[-1] + 1
    query = inputs.query[:, :, as_index(positions)]
    block = raw_scores(inputs, query, width)
    hidden_columns(block, hidden).masked_fill_(hidden, -torch.inf)
    return block


def hidden_columns(block: Tensor, hidden: Tensor) -> Tensor:
    """The columns of a block of rows that ``hidden`` speaks of, as a view."""
    return block[..., block.shape[-1] - hidden.shape[-1] :]


def as_index(positions: range) -> slice:
    """Positions as a slice, which indexes without a copy."""
    return slice(positions.start, positions[-1] + 1, positions.step)


def log_normalizers(inputs: AttentionInputs) -> Float[Tensor, "batch head position"]:
    """Log of the softmax denominator of every row, sinks included, in blocks of queries."""
    batch, heads, length = inputs.query.shape[:3]
    dtype = torch.promote_types(inputs.query.dtype, torch.float32)
    normalizers = torch.empty(batch, heads, length, dtype=dtype, device=inputs.query.device)
    for positions in query_blocks(range(length), inputs):
        hidden = hidden_keys(inputs, positions, positions[-1] + 1)
        normalizers[:, :, as_index(positions)] = scores(inputs, positions, hidden).logsumexp(-1)
    return with_sinks(normalizers, inputs)


def with_sinks(
    normalizers: Float[Tensor, "batch head query"], inputs: AttentionInputs
) -> Float[Tensor, "batch head query"]:
    """Log of the softmax denominator from the log of its share by keys."""
    if inputs.sinks is None:
        return normalizers
    return torch.logaddexp(normalizers, inputs.sinks.to(normalizers.dtype)[None, :, None])
