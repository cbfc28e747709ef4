"""Coalitions of heads: keys that several heads of a layer pick, with one sign, among their largest advantages.

Each head picks the keys of its row with the largest absolute advantage; of equal ones those that come first in the
sequence, so that heads with the same ties pick the same keys (the value vectors of a repeated token are often equal in
the first layer). A key with advantage 0 is never picked. A key *qualifies* when enough heads picked it with one sign;
its score is the sum over them of |A| / rms(A), the root mean square taken over the keys of the head's row. Both
signs of one key may qualify.

``row`` stands for one query of one sequence, with all of its heads.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

PickFlags = Bool[Tensor, "row head pick"]


@dataclass(frozen=True)
class Picks:
    """The picks of every head, the largest absolute advantage first. A pick of advantage 0 is none."""

    keys: Int[Tensor, "row head pick"]
    advantages: Float[Tensor, "row head pick"]  # signed, over the root mean square of the head's row
    weights: Float[Tensor, "row head pick"]  # attention weight of the key in that head
    attention_ranks: Int[Tensor, "row head pick"]  # 1: the head's most attended key


@dataclass(frozen=True)
class Coalitions:
    """Qualifying keys, by row and then by place; and what became of rows and picks."""

    row: Int[Tensor, " qualifying"]
    key: Int[Tensor, " qualifying"]
    direction: Int[Tensor, " qualifying"]  # 1 more attention, −1 less
    heads: Int[Tensor, " qualifying"]
    score: Float[Tensor, " qualifying"]
    place: Int[Tensor, " qualifying"]  # by score within the row, from 1
    smallest_rank: Int[Tensor, " qualifying"]  # of the attention ranks in the agreeing heads
    median_rank: Float[Tensor, " qualifying"]
    largest_rank: Int[Tensor, " qualifying"]
    largest_weight: Float[Tensor, " qualifying"]
    of_pick: Int[Tensor, "row head pick"]  # index of the qualifying key that the pick is part of; −1 if of none
    most_heads: Int[Tensor, " row"]  # most heads that picked one key with one sign


def largest_entries(
    magnitudes: Float[Tensor, "*row key"], count: int
) -> tuple[Float[Tensor, "*row pick"], Int[Tensor, "*row pick"]]:
    """The ``count`` largest entries of each row (all, if it has fewer) and where they are; of equal ones the first."""
    width = magnitudes.shape[-1]
    values, places = magnitudes.topk(min(count + 1, width), dim=-1)
    if width > count:
        # topk chooses among equal entries as it likes: where some at the border are left out, choose again
        tied = (values[..., count - 1] == values[..., count]) & (values[..., count - 1] > 0)
        values, places = values[..., :count], places[..., :count].clone()
        if bool(tied.any()):
            places[tied] = _first_of_equals(magnitudes[tied], values[..., -1:][tied], count)
            values = magnitudes.gather(-1, places)
    places, order = places.sort(-1)
    values, order = values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return values, places.gather(-1, order)


def _first_of_equals(
    magnitudes: Float[Tensor, "row key"], smallest: Float[Tensor, "row 1"], count: int
) -> Int[Tensor, "row pick"]:
    """Where the entries above ``smallest`` are, and the first of those equal to it: ``count`` in each row."""
    above, equal = magnitudes > smallest, magnitudes == smallest
    chosen = above | (equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True)))
    return chosen.nonzero()[:, 1].view(-1, count)


def attention_ranks(
    scores: Float[Tensor, "*row key"], keys: Int[Tensor, "*row pick"], scratch: Float[Tensor, "*row key"]
) -> Int[Tensor, "*row pick"]:
    """1 + the entries of the row that exceed that of the key; equal ones share a rank. Overwrites ``scratch``.

    Measured on rows of 1,024: the five counts of five picks take a half of one sort by NumPy, 1/60 of one by torch.
    """
    chosen = scores.gather(-1, keys)
    counts = [torch.gt(scores, chosen[..., [pick]], out=scratch).sum(-1) for pick in range(keys.shape[-1])]
    return torch.stack(counts, -1).long() + 1


def agree(picks: Picks, min_heads: int) -> Coalitions:
    """Which keys at least ``min_heads`` heads of a row picked with one sign."""
    rows, heads, places = picks.keys.shape
    per_row = heads * places
    # One number for row, key and sign, which the picks of one coalition share; sorted by it and then by attention rank,
    # they lie together and their median rank is in the middle.
    options = 2 * int(picks.keys.max()) + 3 if picks.keys.numel() else 1
    none = options - 1
    option = torch.where(picks.advantages == 0, none, 2 * picks.keys + (picks.advantages > 0)).reshape(rows, per_row)
    option = option + torch.arange(rows, device=option.device)[:, None] * options
    ranks = picks.attention_ranks.reshape(-1)
    order = ranks.argsort(stable=True)
    order = order[option.view(-1)[order].argsort(stable=True)]
    options_in_order, ranks = option.view(-1)[order], ranks[order]

    begins = torch.ones_like(options_in_order, dtype=torch.bool)
    begins[1:] = options_in_order[1:] != options_in_order[:-1]
    run, first = begins.cumsum(0) - 1, begins.nonzero()[:, 0]
    size = torch.diff(first, append=first.new_tensor([len(order)]))
    real = options_in_order[first] % options != none
    size = torch.where(real, size, 0)
    row_of_run = options_in_order[first] // options
    most = torch.zeros(rows, dtype=size.dtype, device=size.device).scatter_reduce(0, row_of_run, size, "amax")

    scores = torch.zeros(len(first), dtype=torch.float64, device=size.device)  # the order of a GPU's sum does not show
    scores.index_add_(0, run, picks.advantages.reshape(-1)[order].abs().double())
    weights = torch.zeros(len(first), dtype=picks.weights.dtype, device=size.device)
    weights.scatter_reduce_(0, run, picks.weights.reshape(-1)[order], "amax")

    qualifying = (size >= min_heads).nonzero()[:, 0]  # by row, key and sign
    qualifying = qualifying[scores[qualifying].argsort(descending=True, stable=True)]
    qualifying = qualifying[row_of_run[qualifying].argsort(stable=True)]
    row, number, start = row_of_run[qualifying], size[qualifying], first[qualifying]
    before = torch.searchsorted(row, row)  # qualifying keys of earlier rows
    index_of_run = torch.full_like(first, -1)
    index_of_run[qualifying] = torch.arange(len(qualifying), device=first.device)
    of_pick = torch.empty_like(order)
    of_pick[order] = index_of_run[run]
    chosen = options_in_order[start] % options
    return Coalitions(
        row=row,
        key=chosen // 2,
        direction=chosen % 2 * 2 - 1,
        heads=number,
        score=scores[qualifying],
        place=torch.arange(len(row), device=row.device) - before + 1,
        smallest_rank=ranks[start],
        median_rank=(ranks[start + (number - 1) // 2] + ranks[start + number // 2]) / 2,
        largest_rank=ranks[start + number - 1],
        largest_weight=weights[qualifying],
        of_pick=of_pick.view(picks.keys.shape),
        most_heads=most,
    )
