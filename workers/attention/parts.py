"""Sequences and heads of a layer apart, where memory is to hold no more than one head of one sequence."""

from collections.abc import Iterator
from dataclasses import replace

from workers.attention import rows
from workers.attention.inputs import LayerAttention


def parts(attention: LayerAttention, elements_per_head: int) -> Iterator[tuple[slice, slice, LayerAttention]]:
    """The layer whole, by sequence, or by sequence and head, so that a part fits a block of the device or is one head.

    Yields sequences, heads and the part, whose module is that of the whole layer.
    """
    batch, heads = attention.query.shape[:2]
    budget = rows.CPU_BLOCK if attention.query.device.type == "cpu" else rows.GPU_BLOCK
    if batch * heads * elements_per_head <= budget:
        yield slice(0, batch), slice(0, heads), attention
        return
    groups = heads // attention.key.shape[1]
    together = heads if heads * elements_per_head <= budget else 1
    for sequence in range(batch):
        for head in range(0, heads, together):
            sequences, chosen = slice(sequence, sequence + 1), slice(head, head + together)
            shared = slice(head // groups, (head + together - 1) // groups + 1)
            yield sequences, chosen, _part(attention, sequences, chosen, shared)


def _part(attention: LayerAttention, sequences: slice, heads: slice, kv_heads: slice) -> LayerAttention:
    mask = attention.mask
    if mask is not None:
        mask = mask[sequences] if mask.shape[0] > 1 else mask
        mask = mask[:, heads] if mask.shape[1] > 1 else mask
    return replace(
        attention,
        query=attention.query[sequences, heads],
        key=attention.key[sequences, kv_heads],
        value=attention.value[sequences, kv_heads],
        mask=mask,
        sinks=None if attention.sinks is None else attention.sinks[heads],
        output=attention.output[sequences, :, heads],
        hidden=None if attention.hidden is None else attention.hidden[sequences],
    )
