"""(F_i + damping·I) x_i = g_i for the rows of a block by conjugate gradients, without any F_i: two products a step.

    F_i x = Σ_j w_ij k'_j,   w_ij = a_ij (u_ij − m_i),   u_ij = k'_ij·x,   m_i = Σ_j a_ij u_ij = k̄_i·x

in the units of ``FisherRows``. Centring comes before the second product, and comes with the first: the keys have one
more component, 1, and x has −m_i there. Of the top key u − m = −κ_i·x is written in, because as a difference it would
be rounding error where that key has nearly all weight.

The residual that is compared with the tolerance is ‖r‖ / (damping·‖x‖). All eigenvalues of F + damping·I are at least
the damping, so it is a bound on the relative error of x; relative to ‖g‖ the same residual says little (measured on
SmolLM2-135M: at ‖r‖ = 0.01 ‖g‖ the median error was 9 %). Rows that are done stand still, and leave the block once
enough of them have: each row's steps are its own.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from workers.attention.natq_rows import FisherRows, only

# A block is packed anew when at most this share of its rows is not done (measured: 0.6 to 0.9 alike).
PACKED_SHARE = 0.75
# How often a GPU is asked how many rows are left, in steps: each time the CPU waits for it (assumed).
GPU_ASKED_EVERY = 4


@dataclass(frozen=True)
class Solution:
    x: Float[Tensor, "problem row d"]
    residual: Float[Tensor, "problem row"]  # ‖r‖ / (damping·‖x‖); infinite where x is 0
    steps: Integer[Tensor, "problem row"]
    done: Bool[Tensor, "problem row"]  # the residual is within the tolerance, or there was nothing to solve


class Product:
    """x ↦ F x for the rows of a block, with room of its own for what lies between the two products."""

    def __init__(self, block: FisherRows) -> None:
        ones = block.key.new_ones(*block.key.shape[:2], 1)
        self._block = block
        self._keys = torch.cat([block.key, ones], -1).mT.contiguous()
        self._between = torch.empty_like(block.weights)
        self._vectors = block.mean.new_empty(*block.mean.shape[:2], block.mean.shape[-1] + 1)
        self._heaviest = -block.weights.gather(-1, block.top)

    def packed(self, block: FisherRows) -> "Product":
        """The same for some of the rows, in the same room."""
        fewer = object.__new__(Product)
        rows = block.weights.shape[1]
        fewer._block, fewer._keys = block, self._keys
        fewer._between = _front(self._between, block.weights.shape)
        fewer._vectors = self._vectors[:, :rows] if len(block.key) == 1 else torch.empty_like(self._vectors[:, :rows])
        fewer._heaviest = -block.weights.gather(-1, block.top)
        return fewer

    def __call__(self, x: Float[Tensor, "problem row d"]) -> Float[Tensor, "problem row d"]:
        block, between = self._block, self._between
        mean = (block.mean * x).sum(-1, keepdim=True).neg_()
        of_top = (block.departure * x).sum(-1, keepdim=True).mul_(self._heaviest)
        if block.slopes is None:
            torch.cat([x, mean], -1, out=self._vectors)
            torch.bmm(self._vectors, self._keys, out=between)
        else:
            torch.bmm(x, self._keys[:, :-1], out=between)
            between.mul_(block.slopes).add_(mean)
        between.mul_(block.weights).scatter_(-1, block.top, of_top)
        if block.slopes is not None:
            between.mul_(block.slopes)
        return between @ block.key


def solve(
    block: FisherRows, gradient: Float[Tensor, "problem row d"], damping: float, tolerance: float, limit: int
) -> Solution:
    """At most ``limit`` steps a row. Gradients should have norm 1, or 0, which like F = 0 leaves x = 0 without a step.

    A row stands still, and is not done, when the curvature along its direction is not positive: rounding has
    outgrown what is left of it.
    """
    problems, height = gradient.shape[:2]
    found = Solution(
        x=torch.zeros_like(gradient),
        residual=gradient.new_full((problems, height), torch.inf),
        steps=torch.zeros(problems, height, dtype=torch.int32, device=gradient.device),
        done=(gradient.square().sum(-1) == 0) | block.flat,
    )
    asked_every = 1 if gradient.device.type == "cpu" else GPU_ASKED_EVERY
    product, place = Product(block), None
    x, r, p = found.x, gradient.clone(), gradient.clone()
    rr = r.square().sum(-1)
    active, steps, residual = ~found.done, found.steps, found.residual

    for step in range(limit):
        if step % asked_every == 0:
            left = int(active.sum(-1).max())
            if left == 0:
                break
            if left <= PACKED_SHARE * active.shape[1]:
                _store(found, place, x, residual, steps)
                chosen = active.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[:, :left]
                place = chosen if place is None else place.gather(1, chosen)
                block = only(block, chosen)
                product = product.packed(block)
                x, r, p = (_rows_of(tensor, chosen) for tensor in (x, r, p))
                rr, active, steps, residual = (tensor.gather(1, chosen) for tensor in (rr, active, steps, residual))
        fp = product(p).add_(p, alpha=damping)
        curvature = (p * fp).sum(-1)
        active = active & (curvature > 0)
        length = torch.where(active, rr / curvature, 0)[..., None]
        x.addcmul_(p, length)
        r.addcmul_(fp, length, value=-1)
        square = torch.where(active, r.norm(dim=-1).square_(), rr)
        p = torch.addcmul(r, p, torch.where(active, square / rr, 0)[..., None])
        rr = square
        steps += active
        residual = torch.where(active, rr.sqrt() / (x.norm(dim=-1) * damping), residual)
        active = active & (residual > tolerance)
    _store(found, place, x, residual, steps)
    return Solution(found.x, found.residual, found.steps, found.done | (found.residual <= tolerance))


def _store(found: Solution, place: Tensor | None, x: Tensor, residual: Tensor, steps: Tensor) -> None:
    """Put what the rows of a packed block have come to where they stood in the whole one."""
    if place is None:
        found.x.copy_(x)
        found.residual.copy_(residual)
        found.steps.copy_(steps)
        return
    found.x.scatter_(1, place[..., None].expand_as(x), x)
    found.residual.scatter_(1, place, residual)
    found.steps.scatter_(1, place, steps)


def _rows_of(tensor: Float[Tensor, "problem row d"], chosen: Tensor) -> Float[Tensor, "problem some d"]:
    return tensor.gather(1, chosen[..., None].expand(-1, -1, tensor.shape[-1]))


def _front(tensor: Tensor, shape: torch.Size) -> Tensor:
    """The beginning of a tensor's memory, in another shape."""
    return tensor.flatten()[: shape.numel()].view(shape)
