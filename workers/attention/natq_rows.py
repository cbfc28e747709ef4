"""Rows of a layer in blocks, as NATQ needs them: what each row's Fisher matrix is made of, never the matrix itself.

    F_i = c² Cov_{a_i}(k') = c² (Σ_j a_ij k'_j k'_jᵀ − k̄_i k̄_iᵀ),    k̄_i = Σ_j a_ij k'_j,    c k'_ij = ∂s_ij/∂q_i

is the Fisher matrix of the attention row under a step of the query (equations 40-42 of "Stuck in a Loop",
https://hyperstition.cc/stuck-in-a-loop, which has c² = 1/d). k'_ij = k_j, but (1 − (s_ij/softcap)²) k_j with a soft
cap. A sink is one more outcome of the row whose score no query moves: its k' is 0, and Σ_j a_ij < 1.

c² drops out (see ``workers/attention/natq.py``), so a block holds F_i in units of its mean eigenvalue: the weights are
divided by τ_i = tr F_i / (c² d), and the damping is then a number like 0.1, the same for every row.

Cancellation is what makes this delicate: where one key has nearly all weight, F is a small difference of large
numbers. So all is said from that key, the *top* of the row: departure κ_i = k̄_i − k'_top, in which its weight has no
part but 1 − a_top = Σ_{j≠top} a_ij.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Integer, Shaped
from torch import Tensor

from workers.attention import rows
from workers.attention.inputs import AttentionInputs, Queries

# Queries of a block on a CPU: with more, the triangle of a causal pattern is cut more coarsely and more of what is
# computed is masked; with fewer, products are too small (measured at T = 256 and 1,024, d = 64 and 128).
CPU_QUERIES = 128
# Elements of a block's weights on a CPU: they and their product should stay in a core's cache (measured with 2 MiB).
CPU_BLOCK = 2**18


@dataclass(frozen=True)
class FisherRows:
    """Rows of several heads; a *problem* is a key/value head of one sequence, its rows those of all its query heads."""

    key: Float[Tensor, "problem key d"]  # centred where that changes nothing: without soft cap and sink
    columns: Float[Tensor, "problem d_and_one key"]  # the same, and a last component of 1
    weights: Float[Tensor, "problem row key"]  # a_ij / τ_i
    slopes: Float[Tensor, "problem row key"] | None  # k'_ij = slopes_ij k_j; none is 1
    sink: Float[Tensor, "problem row 1"] | None  # weight of the sink, over τ_i
    top: Integer[Tensor, "problem row 1"]  # the key with the most weight
    mean: Float[Tensor, "problem row d"]  # k̄_i
    departure: Float[Tensor, "problem row d"]  # κ_i
    flat: Bool[Tensor, "problem row"]  # F is 0: a single key, or only equal ones


@dataclass(frozen=True)
class Layer:
    """Queries, keys and the gradient at the queries of a layer, by problem, in float32 or better.

    Keys are laid out once for the two ways that products read them, so that a block copies none.
    """

    inputs: AttentionInputs
    query: Float[Tensor, "problem group position d"]  # times the scaling
    gradient: Float[Tensor, "problem group position d"]
    keys: Float[Tensor, "problem position d_and_two"]  # k_j, 1, ‖k_j‖²
    columns: Float[Tensor, "problem d_and_one position"]  # k_j, 1


def by_problem(inputs: AttentionInputs, gradient: Queries) -> Layer:
    """One copy of the layer, with query heads beside the key/value head they use."""
    kv_heads = inputs.key.shape[1]

    def grouped(tensor: Queries) -> Float[Tensor, "problem group position d"]:
        return rows.at_least_float32(tensor).unflatten(1, (kv_heads, -1)).flatten(0, 1)

    key = rows.at_least_float32(inputs.key).flatten(0, 1)
    # moved by a common vector, keys have the same weights and the same F, and digits are kept; but a sink's k' is 0
    if inputs.softcap is None and inputs.sinks is None:
        key = key - key.mean(1, keepdim=True)
    keys = _padded(torch.cat([key, torch.ones_like(key[..., :1]), key.square().sum(-1, keepdim=True)], -1))
    columns = _padded(keys[..., :-1].mT)
    return Layer(inputs, grouped(inputs.query) * inputs.scaling, grouped(gradient), keys, columns)


def _padded(tensor: Float[Tensor, "problem line each"]) -> Float[Tensor, "problem line each"]:
    """A copy whose lines begin at multiples of 64 bytes and not of large powers of two, as caches like it."""
    length = tensor.shape[-1]
    copy = tensor.new_empty(*tensor.shape[:-1], (length + 15) // 16 * 16 + 16)[..., :length]
    return copy.copy_(tensor)


def parts(layer: Layer) -> Iterator[tuple[slice, range]]:
    """Problems and queries of each block, whose weights fit the block size of the device; at least one row's."""
    problems, groups, length = layer.query.shape[:3]
    on_cpu = layer.query.device.type == "cpu"
    budget = min(rows.CPU_BLOCK, CPU_BLOCK) if on_cpu else rows.GPU_BLOCK
    for positions in rows.blocks(range(length), groups, budget):
        step = min(len(positions), CPU_QUERIES) if on_cpu else len(positions)
        for start in range(0, len(positions), step):
            block = positions[start : start + step]
            together = max(1, budget // (groups * len(block) * (block[-1] + 1)))
            for first in range(0, problems, together):
                yield slice(first, min(first + together, problems)), block


def fisher_rows(layer: Layer, problems: slice, positions: range) -> FisherRows:
    """The rows of a block: problems × (groups · queries) rows over the keys that any of them sees."""
    hidden, first, width = _hidden(layer, problems, positions), 0, positions[-1] + 1
    if layer.inputs.mask is not None:
        first = int((~hidden).flatten(0, -2).any(0).int().argmax())
        hidden = hidden[..., first:]
    query = layer.query[problems, :, rows.as_index(positions)]
    columns = layer.columns[problems, :, first:width]
    scores = query.flatten(1, 2) @ columns[:, :-1]
    slopes, softcap = None, layer.inputs.softcap
    if softcap is not None:
        scores.div_(softcap).tanh_()
        slopes = 1 - scores.square()
        scores.mul_(softcap)
    # adding is many times faster than filling where a mask says so, and the mask is that of one problem mostly
    added = torch.zeros_like(hidden, dtype=scores.dtype).masked_fill_(hidden, -torch.inf)
    rows.hidden_columns(scores.unflatten(1, query.shape[1:3]), hidden).add_(added)
    return _from_scores(scores, layer.keys[problems, first:width], columns, slopes, _sinks(layer, problems, query))


def _from_scores(
    scores: Float[Tensor, "problem row key"],
    keys: Float[Tensor, "problem key d_and_two"],
    columns: Float[Tensor, "problem d_and_one key"],
    slopes: Float[Tensor, "problem row key"] | None,
    sinks: Float[Tensor, "problem row 1"] | None,
) -> FisherRows:
    """Writes over the scores."""
    tiny, d = torch.finfo(scores.dtype).tiny, keys.shape[-1] - 2
    top = _heaviest(scores)
    largest = scores.gather(-1, top)
    if sinks is not None:
        largest = torch.maximum(largest, sinks)
    largest = largest.clamp_min(torch.finfo(scores.dtype).min)  # a row that sees no key
    weights = scores.sub_(largest).exp_()  # not divided by their sum yet
    heaviest = weights.gather(-1, top)
    weights.scatter_(-1, top, 0)
    moved, rest, second = (weights @ keys).split([d, 1, 1], -1)  # over the other keys: Σ a k', Σ a, Σ a ‖k'‖²
    if slopes is not None:
        first = weights * slopes
        moved, second = first @ keys[..., :d], (first * slopes) @ keys[..., d + 1 :]
    weights.scatter_(-1, top, heaviest)
    sink = None if sinks is None else (sinks - largest).exp_()
    if sink is not None:
        rest = rest + sink
    total = (rest + heaviest).clamp_min(tiny)
    moved, second, rest = moved / total, second / total, rest / total  # rest is 1 − a_top now

    top_key = keys.gather(1, top.expand(-1, -1, d))
    if slopes is not None:
        top_key = top_key * slopes.gather(-1, top)
    departure = moved - rest * top_key
    # Σ_j a_j ‖k'_j − k'_top‖² − ‖κ‖²
    trace = second - 2 * (moved * top_key).sum(-1, keepdim=True) + rest * top_key.square().sum(-1, keepdim=True)
    trace = trace - departure.square().sum(-1, keepdim=True)
    # at this size weights over τ, and products with them, still keep away from the ends of the number range
    flat = ~(trace > tiny * 2.0**24)
    unit = torch.where(flat, 1, trace / d) * total
    return FisherRows(
        key=keys[..., :d],
        columns=columns,
        weights=weights.mul_(unit.reciprocal()),
        slopes=slopes,
        sink=None if sink is None else sink / unit,
        top=top,
        mean=departure + top_key,
        departure=departure,
        flat=flat[..., 0],
    )


def _heaviest(scores: Float[Tensor, "problem row key"]) -> Integer[Tensor, "problem row 1"]:
    """Where each row is largest."""
    if scores.device.type == "cpu":  # ten times faster by NumPy
        return torch.from_numpy(scores.numpy().argmax(-1)[..., None])
    return scores.argmax(-1, keepdim=True)


def _hidden(layer: Layer, problems: slice, positions: range) -> Bool[Tensor, "masks groups query hidden"]:
    """True where a key is not in the query's row; as in ``rows.hidden_keys``, of the last columns only."""
    hidden = rows.hidden_keys(layer.inputs, positions, positions[-1] + 1)
    if hidden.shape[:2] == (1, 1):
        return hidden
    batch, kv_heads = layer.inputs.key.shape[:2]
    number = torch.arange(problems.start, problems.stop, device=hidden.device)
    by_head = hidden.expand(batch, layer.inputs.query.shape[1], -1, -1).unflatten(1, (kv_heads, -1))
    return by_head[number // kv_heads, number % kv_heads]


def _sinks(
    layer: Layer, problems: slice, query: Float[Tensor, "problem group query d"]
) -> Float[Tensor, "problem row 1"] | None:
    """The sink's score in every row."""
    if layer.inputs.sinks is None:
        return None
    batch, kv_heads = layer.inputs.key.shape[:2]
    by_head = layer.inputs.sinks.to(query.dtype).unflatten(0, (kv_heads, -1)).repeat(batch, 1)[problems]
    return by_head[:, :, None].expand(query.shape[:3]).flatten(1)[..., None]


def only(block: FisherRows, index: Integer[Tensor, "problem some"]) -> FisherRows:
    """The rows that ``index`` names, equally many of each problem."""
    return replace(
        block,
        weights=gathered(block.weights, index),
        slopes=None if block.slopes is None else gathered(block.slopes, index),
        sink=None if block.sink is None else gathered(block.sink, index),
        top=gathered(block.top, index),
        mean=gathered(block.mean, index),
        departure=gathered(block.departure, index),
        flat=block.flat.gather(1, index),
    )


def gathered(
    tensor: Shaped[Tensor, "problem row each"], index: Integer[Tensor, "problem some"]
) -> Shaped[Tensor, "problem some each"]:
    """The rows that ``index`` names, of each problem its own."""
    if len(index) == 1:  # several times faster on a CPU
        return tensor[0].index_select(0, index[0])[None]
    return tensor.gather(1, index[..., None].expand(-1, -1, tensor.shape[-1]))
