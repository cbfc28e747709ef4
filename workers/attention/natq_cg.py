"""(F_i + damping·I) x_i = g_i for the rows of a block by conjugate gradients, without any F_i: two products a step.

    F_i x = Σ_j w_ij k'_j,   w_ij = a_ij (u_ij − m_i),   u_ij = k'_ij·x,   m_i = Σ_j a_ij u_ij = k̄_i·x

in the units of ``FisherRows``. Centring comes before the second product, and comes with the first: the keys have one
more component, 1, and x has −m_i there. Of the top key u − m = −κ_i·x is written in, because as a difference it would
be rounding error where that key has nearly all weight.

The residual that is compared with the tolerance is ‖r‖ / (damping·‖x‖). All eigenvalues of F + damping·I are at least
the damping, so it is a bound on the relative error of x; relative to ‖g‖ the same residual says little (measured on
SmolLM2-135M: at ‖r‖ = 0.01 ‖g‖ the median error was 9 %). Rows that are done stand still, and leave the block once
enough of them have: each row's steps are its own.

Beside the two products a step is a dozen operations on vectors, which count: what is written is written in place, and
whether rows are done is looked at every few steps only.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from workers.attention.natq_rows import FisherRows, gathered

# A block is packed anew when at most this share of its rows is not done (measured: 0.6 to 0.9 alike).
PACKED_SHARE = 0.7
# How often rows are looked at, in steps. On a GPU the CPU waits for the answer (assumed).
CPU_ASKED_EVERY = 2
GPU_ASKED_EVERY = 4


@dataclass(frozen=True)
class Solution:
    x: Float[Tensor, "problem row d"]
    residual: Float[Tensor, "problem row"]  # ‖r‖ / (damping·‖x‖); infinite where x is 0
    steps: Integer[Tensor, "problem row"]
    done: Bool[Tensor, "problem row"]  # the residual is within the tolerance, or there was nothing to solve


def solve(
    block: FisherRows, gradient: Float[Tensor, "problem row d"], damping: float, tolerance: float, limit: int
) -> Solution:
    """At most ``limit`` steps a row. Gradients should have norm 1, or 0, which like F = 0 leaves x = 0 without a step.

    A row stands still, done or not, when its residual is rounding error, or when the curvature along its direction is
    not positive: rounding has outgrown what is left of it.
    """
    found = Solution(
        x=torch.zeros_like(gradient),
        residual=torch.full_like(gradient[..., 0], torch.inf),
        steps=torch.zeros(gradient.shape[:2], dtype=torch.int32, device=gradient.device),
        done=(gradient.square().sum(-1) == 0) | block.flat,
    )
    asked_every = CPU_ASKED_EVERY if gradient.device.type == "cpu" else GPU_ASKED_EVERY
    rows = _Rows(block, gradient, ~found.done)
    enough = damping * max(tolerance, torch.finfo(gradient.dtype).eps)
    place, taken = None, 0
    while taken < limit:
        left = int(rows.active.sum(-1).max())
        if left == 0:
            break
        if left <= PACKED_SHARE * rows.active.shape[1]:
            _store(found, place, rows, damping)
            chosen = rows.active.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[:, :left]
            place = chosen if place is None else place.gather(1, chosen)
            rows.keep(chosen)
        several = min(asked_every, limit - taken)
        for _ in range(several):
            rows.step(damping)
        taken += several
        rows.look(several, enough)
    _store(found, place, rows, damping)
    return Solution(found.x, found.residual, found.steps, found.done | (found.residual <= tolerance))


class _Rows:
    """The rows that are left of a block, and where conjugate gradients have taken them."""

    def __init__(self, block: FisherRows, gradient: Tensor, active: Tensor) -> None:
        self._key, self._columns = block.key, block.columns
        self._weights, self._slopes, self._top = block.weights, block.slopes, block.top
        # against x these give −m and, of the top key, a (u − m)
        self._fixed = torch.stack([-block.mean, -block.weights.gather(-1, block.top) * block.departure])
        self._between = torch.empty_like(block.weights)
        self._direction = F.pad(gradient, (0, 1))  # p, and room for −m
        self._image = torch.empty_like(gradient)
        self._r = gradient * active[..., None]
        self._rr = self._r.square().sum(-1)
        self._lowest = torch.full_like(self._rr, torch.inf)  # curvature so far
        self.x = torch.zeros_like(gradient)
        self.active = active
        self.residual = torch.full_like(self._rr, torch.inf)  # ‖r‖ / ‖x‖ when they were looked at
        self.steps = torch.zeros(active.shape, dtype=torch.int32, device=active.device)

    def step(self, damping: float) -> None:
        """One step of every row; those with r = 0 stand still, and those whose curvature is not positive."""
        p, r = self._direction[..., :-1], self._r
        image = self._product(p, damping)
        curvature = (p * image).sum(-1)
        torch.minimum(self._lowest, curvature, out=self._lowest)
        length = (self._rr / _infinite_unless_positive(curvature))[..., None]
        self.x.addcmul_(p, length)
        r.addcmul_(image, length, value=-1)
        rr = r.norm(dim=-1).square_()
        torch.addcmul(r, p, (rr / _infinite_unless_positive(self._rr))[..., None], out=p)
        self._rr = rr

    def look(self, taken: int, enough: float) -> None:
        """After ``taken`` steps: rows with ‖r‖ / ‖x‖ no more than enough stand still, and those of no curvature."""
        self.steps.add_(self.active, alpha=taken)
        ratio = self._rr.sqrt().div_(self.x.norm(dim=-1))
        self.residual = torch.where(self.active, ratio, self.residual)
        self.active &= (self.residual > enough).logical_and_(self._lowest > 0)
        self._r.mul_(self.active[..., None])
        self._direction.mul_(self.active[..., None])
        self._rr.mul_(self.active)

    def _product(self, p: Float[Tensor, "problem row d"], damping: float) -> Float[Tensor, "problem row d"]:
        """(F + damping·I) p."""
        between = self._between
        mean, of_top = (self._fixed * p).sum(-1, keepdim=True)
        if self._slopes is None:
            self._direction[..., -1:] = mean
            torch.bmm(self._direction, self._columns, out=between)
            between.mul_(self._weights).scatter_(-1, self._top, of_top)
        else:
            torch.bmm(p, self._columns[:, :-1], out=between)
            between.mul_(self._slopes).add_(mean).mul_(self._weights).scatter_(-1, self._top, of_top)
            between.mul_(self._slopes)
        return torch.baddbmm(p, between, self._key, beta=damping, out=self._image)

    def keep(self, chosen: Integer[Tensor, "problem some"]) -> None:
        """Leave the other rows."""
        self._weights = gathered(self._weights, chosen)
        self._slopes = None if self._slopes is None else gathered(self._slopes, chosen)
        self._top, self._direction = gathered(self._top, chosen), gathered(self._direction, chosen)
        self._fixed = torch.stack([gathered(each, chosen) for each in self._fixed])
        self.x, self._r = gathered(self.x, chosen), gathered(self._r, chosen)
        self._rr, self._lowest, self.residual, self.steps, self.active = (
            each.gather(1, chosen) for each in (self._rr, self._lowest, self.residual, self.steps, self.active)
        )
        self._between = self._between.flatten()[: self._weights.numel()].view(self._weights.shape)
        self._image = self._image.flatten()[: self.x.numel()].view(self.x.shape)


def _infinite_unless_positive(tensor: Tensor) -> Tensor:
    """So that a number divided by it is 0; also where it is not a number."""
    return F.threshold(tensor, 0.0, torch.inf)


def _store(found: Solution, place: Tensor | None, rows: _Rows, damping: float) -> None:
    """Put what the rows that are left have come to where they stand in the whole block."""
    if place is None:
        found.x.copy_(rows.x)
        found.residual.copy_(rows.residual / damping)
        found.steps.copy_(rows.steps)
        return
    found.x.scatter_(1, place[..., None].expand_as(rows.x), rows.x)
    found.residual.scatter_(1, place, rows.residual / damping)
    found.steps.scatter_(1, place, rows.steps)
