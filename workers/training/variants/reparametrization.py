"""W·γ/σ(W) on every linear layer, each of q, k and v with γ and σ of its own where one layer holds them.

σ = uᵀWv with u and v constants of the gradient, as in Miyato et al.: ∂σ/∂W = uvᵀ, the gradient of the largest singular
value. One power iteration follows each optimizer step and nothing else changes u and v: a forward pass, however often
it runs, leaves them alone, so that accumulated gradients, several processes and a resumed run give the same numbers.
u and v are buffers of the model's state. Layers as ``workers/training/linear_layers.py`` lists them; biases stay.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from services.contracts.errors import ErrorCode, KeyholeError
from workers.attention.spectral import largest_singular
from workers.training.linear_layers import LinearLayer, as_matrix, linear_layers


class Reparametrised(nn.Module):
    """A parametrization of one linear layer's weight, for ``torch.nn.utils.parametrize``."""

    u: Tensor  # [output]: the left singular vector of every part, at that part's outputs
    v: Tensor  # [part, input]
    member: Tensor  # [part, output]: 1 where the output belongs to the part
    gamma: Tensor  # [part]

    def __init__(self, linear: LinearLayer, *, learned: bool, keep_function: bool) -> None:
        super().__init__()
        self.transposed = isinstance(linear.module, Conv1D)
        weight = as_matrix(linear.module).detach()
        outputs = len(weight)
        member = weight.new_zeros(len(linear.parts), outputs)
        u, v, sigmas = weight.new_zeros(outputs), [], []
        for number, part in enumerate(linear.parts):
            chosen = torch.arange(outputs) if part.outputs is None else part.outputs
            sigma, left, right = largest_singular(weight[chosen][None])
            if not sigma.item() > 0:
                raise KeyholeError(
                    ErrorCode.MODEL_UNSUPPORTED,
                    f"{linear.path}.weight ({part.name}) has spectral norm {sigma.item()}; it cannot be divided by.",
                    "Start from weights that are not zero, or leave out sigma_reparam and spectral_norm.",
                )
            member[number, chosen] = 1
            u[chosen] = left[0]
            v.append(right[0])
            sigmas.append(sigma[0])
        self.register_buffer("u", u)
        self.register_buffer("v", torch.stack(v))
        self.register_buffer("member", member, persistent=False)
        gamma = torch.stack(sigmas) if keep_function else torch.ones_like(torch.stack(sigmas))
        if learned:
            self.gamma = nn.Parameter(gamma)
        else:
            self.register_buffer("gamma", gamma, persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        with torch.autocast(weight.device.type, enabled=False):  # bfloat16 would lose γ/σ
            matrix = weight.T if self.transposed else weight
            factors = self.member.T @ (self.gamma / self.sigma(matrix))
            return weight * (factors if self.transposed else factors[:, None])

    def sigma(self, matrix: Float[Tensor, "output input"]) -> Float[Tensor, " part"]:
        """uᵀWv of every part."""
        return ((matrix @ self.v.T).T * self.member) @ self.u

    @torch.no_grad()
    def iterate(self, matrix: Float[Tensor, "output input"]) -> None:
        """One power iteration."""
        image = (matrix @ self.v.T).T * self.member  # [part, output]
        image = nn.functional.normalize(image, dim=1)
        self.u.copy_(image.sum(0))
        self.v.copy_(nn.functional.normalize(image @ matrix, dim=1))


def reparametrise(model: PreTrainedModel, *, learned: bool, keep_function: bool) -> Callable[[], None]:
    """Put the parametrization on every linear layer; returns the power iteration that follows an optimizer step."""
    found = linear_layers(model)
    inside = {id(parameter) for linear in found for parameter in linear.module.parameters()}
    for name, parameter in model.named_parameters():
        if parameter.ndim > 2 and id(parameter) not in inside:
            raise KeyholeError(
                ErrorCode.MODEL_UNSUPPORTED,
                f"{name} has {parameter.ndim} axes: weights of several experts, which are no linear layers.",
                "Choose a model without a mixture of experts, or leave out sigma_reparam and spectral_norm.",
            )
    put = []
    for linear in found:
        parametrization = Reparametrised(linear, learned=learned, keep_function=keep_function)
        raw = linear.module.weight
        assert isinstance(raw, Tensor)
        # unsafe: the check would compute the weight once more, and the function is meant to change
        parametrize.register_parametrization(linear.module, "weight", parametrization, unsafe=True)
        put.append((parametrization, raw))

    @torch.no_grad()
    def after_step() -> None:
        for parametrization, raw in put:
            parametrization.iterate(raw.T if parametrization.transposed else raw)

    return after_step
