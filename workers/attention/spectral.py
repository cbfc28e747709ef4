"""Spectral norms of inputs and weights, without matrices larger than they have to be. By Lanczos iteration."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

_STEPS = 256  # of Lanczos; a dominant direction takes about 10
_CHECK_EVERY = 8
_TOLERANCE = 1e-6  # of the residual, relative: that of the eigenvalue is smaller still
_VECTOR_TOLERANCE = 1e-4  # the same where vectors are asked for: σ departs by its square over the spectrum's gap


def gram_norm(x: Float[Tensor, "batch row column"]) -> Float[Tensor, " batch"]:
    """‖X Xᵀ‖₂, the square of the largest singular value, from the Gram matrix of the shorter side."""
    rows, columns = x.shape[-2:]
    return largest_eigenvalue(x @ x.transpose(-1, -2) if rows <= columns else x.transpose(-1, -2) @ x)


def largest_eigenvalue(gram: Float[Tensor, "batch n n"]) -> Float[Tensor, " batch"]:
    """Largest eigenvalue of positive semidefinite matrices."""
    return _lanczos(lambda vector: (gram @ vector[..., None])[..., 0], gram[..., 0])[0]


def largest_singular_value(x: Float[Tensor, "batch row column"]) -> Float[Tensor, " batch"]:
    """‖X‖₂ by products with vectors alone; zero for a matrix of zeros."""
    return largest_singular(x)[0]


def largest_singular(
    x: Float[Tensor, "batch row column"],
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch row"], Float[Tensor, "batch column"]]:
    """Largest singular value with its vectors u and v, so that ‖X‖₂ = uᵀXv; a matrix of zeros has u = 0."""
    if x.shape[1] < x.shape[2]:
        sigma, v, u = largest_singular(x.transpose(1, 2))
        return sigma, u, v
    scale = x.abs().amax((1, 2)).clamp_min(torch.finfo(x.dtype).tiny)  # squares of small updates would vanish
    scaled = x / scale[:, None, None]
    _, v = _lanczos(lambda vector: _gram_times(scaled, vector), x[:, 0], _VECTOR_TOLERANCE)
    image = (scaled @ v[..., None])[..., 0]
    sigma = image.norm(dim=-1)
    return sigma * scale, image / sigma.clamp_min(torch.finfo(x.dtype).tiny)[:, None], v


def _gram_times(x: Float[Tensor, "batch row column"], vector: Float[Tensor, "batch column"]) -> Tensor:
    return (x.transpose(1, 2) @ (x @ vector[..., None]))[..., 0]


def _lanczos(
    times: Callable[[Float[Tensor, "batch n"]], Float[Tensor, "batch n"]],
    like: Float[Tensor, "batch n"],
    tolerance: float = _TOLERANCE,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch n"]]:
    """Largest eigenvalue, and its vector, of positive semidefinite maps, with full reorthogonalization."""
    batch, n = like.shape
    start = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    vector = (start / start.norm()).to(like).expand(batch, n)
    basis = vector[:, None]
    diagonal, beside = [], []
    largest, inner = like.new_zeros(batch), like.new_zeros(batch, 1)
    for step in range(1, min(n, _STEPS) + 1):
        image = times(vector)
        diagonal.append((image * vector).sum(-1))
        for _ in range(2):  # twice is enough to make it orthogonal to rounding
            image = image - ((basis @ image[..., None]).transpose(-1, -2) @ basis)[:, 0]
        length = image.norm(dim=-1)
        if step % _CHECK_EVERY == 0 or step == min(n, _STEPS):
            values, vectors = torch.linalg.eigh(_tridiagonal(diagonal, beside))
            largest, inner = values[:, -1], vectors[:, :, -1]
            if bool((length * inner[:, -1].abs() <= tolerance * largest).all()):
                break
        beside.append(length)
        vector = image / length.clamp_min(torch.finfo(like.dtype).tiny)[:, None]
        basis = torch.cat([basis, vector[:, None]], 1)
    found = (inner[:, None] @ basis[:, : inner.shape[1]])[:, 0]
    return largest, found / found.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(like.dtype).tiny)


def _tridiagonal(diagonal: list[Tensor], beside: list[Tensor]) -> Float[Tensor, "batch step step"]:
    matrix = torch.diag_embed(torch.stack(diagonal, -1))
    if beside:
        off = torch.stack(beside, -1)
        matrix = matrix + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    return matrix


def bilinear_norm(
    query_weight: Float[Tensor, "head d_model d"], key_weight: Float[Tensor, "kv_head d_model d"]
) -> Float[Tensor, " head"]:
    """‖W_K W_Qᵀ‖₂ of each query head with its key/value head, in float64.

    W = Q R with orthonormal columns of Q, which change no norm: the norm is that of R_K R_Qᵀ, a d×d matrix.
    """
    query, key = (torch.linalg.qr(weight.double(), mode="r").R for weight in (query_weight, key_weight))
    key = key.repeat_interleave(len(query) // len(key), 0)
    return torch.linalg.matrix_norm(key @ query.transpose(-1, -2), ord=2)
