"""In how many directions a matrix acts, from its singular values.

Ranks that are no whole numbers: the *effective rank* exp(−Σ p log p) of shares p that add up to 1 (equation 25 of
"Stuck in a Loop" takes p_r = σ_r² / Σ σ²; p_r = σ_r / Σ σ gives more to small directions), and the *participation
ratio* (Σ σ²)² / Σ σ⁴. Both are 1 for a matrix of rank 1, and n if n singular values are equal and the others 0.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Integer
from torch import Tensor

THRESHOLDS = (1e-2, 1e-3)  # of the largest singular value


@dataclass(frozen=True)
class SpectrumStatistics:
    """One entry per matrix; a matrix of zeros has NaN ranks and no modes."""

    relative: Float[Tensor, "*matrix mode"]  # σ / σ_max, largest first; NaN for zeros
    effective_rank: Float[Tensor, "*matrix"]  # of σ²
    effective_rank_sigma: Float[Tensor, "*matrix"]  # of σ
    participation_ratio: Float[Tensor, "*matrix"]
    modes_above: tuple[Integer[Tensor, "*matrix"], ...]  # how many σ lie above each threshold


def statistics(sigma: Float[Tensor, "*matrix mode"]) -> SpectrumStatistics:
    """Ranks and counts of matrices from their singular values, largest first."""
    relative = sigma / sigma[..., :1]
    squares = relative.square()
    total = squares.sum(-1)
    return SpectrumStatistics(
        relative=relative,
        effective_rank=_effective_rank(squares / total[..., None]),
        effective_rank_sigma=_effective_rank(relative / relative.sum(-1, keepdim=True)),
        participation_ratio=total.square() / squares.square().sum(-1),
        modes_above=tuple((relative > threshold).sum(-1) for threshold in THRESHOLDS),
    )


def _effective_rank(shares: Float[Tensor, "*matrix mode"]) -> Float[Tensor, "*matrix"]:
    return torch.exp(-torch.special.xlogy(shares, shares).sum(-1))
