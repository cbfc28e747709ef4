"""Head types on random tokens repeated once: induction, duplicate-token and previous-token scores.

A sequence is a start token and a block of n different random tokens, twice. With 1 ≤ p ≤ n, and a the head's weights,

    induction = mean_p a[p+n, p+1]      duplicate = mean_p a[p+n, p]      previous = mean over i = 1 … 2n of a[i, i−1]

The pairs are those of TransformerLens' ``head_detector`` for such a sequence (induction: the token after an earlier
occurrence). Its default score divides the same sums by the sum of all weights, 2n + 1 without learned sinks: there an
induction head reaches n/(2n + 1) at most, here 1. Olsson et al. (2022), "In-context Learning and Induction Heads",
call the mean over repeated tokens the prefix matching score.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from workers.attention import rows
from workers.attention.inputs import AttentionInputs

_SEED = 0x6B657968  # with the number of a sequence it makes its tokens, whatever shard it is in


def repeated_tokens(sequence: int, candidates: Sequence[int], start: int | None, length: int) -> list[int]:
    """Start token and twice the same ``length`` different candidates; another candidate starts if ``start`` is none."""
    # RandomState: NumPy promises that its stream stays the same in later versions
    random = np.random.RandomState([_SEED, sequence])
    drawn = random.choice(np.asarray(candidates), length + (start is None), replace=False).tolist()
    first, block = (drawn[0], drawn[1:]) if start is None else (start, drawn)
    return [first, *block, *block]


def repeated_length(asked: int, most_tokens: int, candidates: int, *, has_start: bool) -> int:
    """Tokens in a block: as asked, but no more than twice fit a sequence, or there are different ones."""
    return max(1, min(asked, (most_tokens - 1) // 2, candidates - (not has_start)))


def head_type_scores(inputs: AttentionInputs) -> Float[Tensor, "score batch head"]:
    """Induction, duplicate and previous scores of each head on sequences as ``repeated_tokens`` makes them."""
    batch, heads, positions = inputs.query.shape[:3]
    length = (positions - 1) // 2
    device = inputs.query.device
    back = torch.tensor([length - 1, length, 1], device=device)  # from query to key, for each score
    sums = torch.zeros(batch, heads, 3, dtype=torch.float64, device=device)
    for block in rows.query_blocks(range(1, positions), inputs):
        scores = rows.scores(inputs, block, rows.hidden_keys(inputs, block, block[-1] + 1))
        normalizers = rows.with_sinks(scores.logsumexp(-1), inputs)
        queries = torch.tensor(block, device=device)[:, None]
        keys = (queries - back).clamp(min=0).expand(batch, heads, -1, -1)
        weights = torch.exp(scores.gather(-1, keys) - normalizers[..., None])
        weights[..., :2].masked_fill_(queries <= length, 0)  # only repeated tokens have an earlier occurrence
        sums += weights.sum(-2)
    return (sums / torch.tensor([length, length, positions - 1], device=device)).movedim(-1, 0)
