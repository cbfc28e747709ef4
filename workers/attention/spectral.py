"""Spectral norms of inputs and weights, without matrices larger than they have to be."""

import torch
from jaxtyping import Float
from torch import Tensor

_STEPS = 256  # of Lanczos; a dominant direction takes about 10
_CHECK_EVERY = 8
_TOLERANCE = 1e-6  # of the residual, relative: that of the eigenvalue is smaller still


def gram_norm(x: Float[Tensor, "batch row column"]) -> Float[Tensor, " batch"]:
    """‖X Xᵀ‖₂, the square of the largest singular value, from the Gram matrix of the shorter side."""
    rows, columns = x.shape[-2:]
    return largest_eigenvalue(x @ x.transpose(-1, -2) if rows <= columns else x.transpose(-1, -2) @ x)


def largest_eigenvalue(gram: Float[Tensor, "batch n n"]) -> Float[Tensor, " batch"]:
    """Largest eigenvalue of positive semidefinite matrices, by Lanczos with full reorthogonalization."""
    batch, n = gram.shape[:2]
    start = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    vector = (start / start.norm()).to(gram).expand(batch, n)
    basis = vector[:, None]
    diagonal, beside = [], []
    largest = gram.new_zeros(batch)
    for step in range(1, min(n, _STEPS) + 1):
        image = (gram @ vector[..., None])[..., 0]
        diagonal.append((image * vector).sum(-1))
        for _ in range(2):  # twice is enough to make it orthogonal to rounding
            image = image - ((basis @ image[..., None]).transpose(-1, -2) @ basis)[:, 0]
        length = image.norm(dim=-1)
        if step % _CHECK_EVERY == 0 or step == min(n, _STEPS):
            values, vectors = torch.linalg.eigh(_tridiagonal(diagonal, beside))
            largest = values[:, -1]
            if bool((length * vectors[:, -1, -1].abs() <= _TOLERANCE * largest).all()):
                break
        beside.append(length)
        vector = image / length.clamp_min(torch.finfo(gram.dtype).tiny)[:, None]
        basis = torch.cat([basis, vector[:, None]], 1)
    return largest


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
