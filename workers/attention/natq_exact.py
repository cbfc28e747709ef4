"""(F_i + damping·I) x_i = g_i for the rows of a block by Cholesky decomposition of every row's matrix.

F_i is a sum over keys of squares of centred keys, as equation 42 writes it, and no difference of sums: it has no
negative eigenvalue even where one key has nearly all weight. Rows are taken a few at a time, so that their weighted
keys (rows × keys × d) and their matrices (rows × d × d) fit the block size of the device.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from workers.attention import rows
from workers.attention.natq_cg import Solution
from workers.attention.natq_rows import FisherRows, only


def solve(block: FisherRows, gradient: Float[Tensor, "problem row d"], damping: float) -> Solution:
    """All rows; ``steps`` is 0. A row whose matrix has no Cholesky decomposition is not done, and its x is 0.

    Gradients should have norm 1, or 0; that and F = 0 give x = 0.
    """
    budget = rows.CPU_BLOCK if gradient.device.type == "cpu" else rows.GPU_BLOCK
    d = gradient.shape[-1]
    together = max(1, budget // (len(gradient) * d * max(d, block.key.shape[1])))
    index = torch.arange(gradient.shape[1], device=gradient.device).expand(len(gradient), -1)
    found = [
        _solve(only(block, some), gradient.gather(1, some[..., None].expand(-1, -1, d)), damping)
        for some in index.split(together, dim=1)
    ]
    return Solution(*(torch.cat(part, 1) for part in zip(*found, strict=True)))


def _solve(
    block: FisherRows, gradient: Float[Tensor, "problem row d"], damping: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    matrix = fisher(block)
    matrix.diagonal(dim1=-2, dim2=-1).add_(damping)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    nothing = (gradient.square().sum(-1) == 0) | block.flat
    x = torch.cholesky_solve(gradient[..., None], factor)
    r = (matrix @ x).squeeze(-1).sub_(gradient)
    x = x.squeeze(-1)
    solved = (failed == 0) & x.isfinite().all(-1)
    x = torch.where((solved & ~nothing)[..., None], x, 0)
    residual = r.norm(dim=-1) / (damping * x.norm(dim=-1))
    residual = torch.where(solved & ~nothing, residual, torch.inf)
    return x, residual, torch.zeros_like(nothing, dtype=torch.int32), solved | nothing


def fisher(block: FisherRows) -> Float[Tensor, "problem row d d"]:
    """F of every row, in units of its mean eigenvalue: the trace is d."""
    keys = block.key[:, None]
    if block.slopes is not None:
        keys = keys * block.slopes[..., None]
    centred = keys - block.mean[:, :, None]
    # of the top key this would be rounding error where it has nearly all weight
    heaviest = block.top[..., None].expand(-1, -1, -1, keys.shape[-1])
    centred.scatter_(2, heaviest, -block.departure[:, :, None])
    matrix = (centred * block.weights[..., None]).mT @ centred
    if block.sink is not None:  # its key is 0
        matrix += block.sink[..., None] * block.mean[..., None] * block.mean[..., None, :]
    return matrix
