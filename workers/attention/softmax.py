"""The softmax route: attention as the model defines it, by fused kernels where they exist.

With ``credit="own_token"`` the output is the same and the gradient is cut to each query's own prediction.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from services.contracts.probes.common import Credit
from workers.attention.exact import exact_attention
from workers.attention.inputs import AttentionInputs
from workers.attention.own_token import own_token_attention


def softmax_route(inputs: AttentionInputs, credit: Credit) -> Float[Tensor, "batch head position d_value"]:
    """Head outputs y_i = Σ_j a_ij v_j."""
    if credit == "own_token":
        return own_token_attention(inputs, attend)
    return attend(inputs)


def attend(inputs: AttentionInputs) -> Float[Tensor, "batch head position d_value"]:
    """Fused attention; exact attention by blocks for soft caps and sinks. No T×T matrix of scores in either."""
    if inputs.softcap is not None or inputs.sinks is not None:
        return exact_attention(inputs)
    query, key, value = inputs.query, inputs.key, inputs.value
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and inputs.mask is not None and query.device.type != "cpu":
        # CUDA kernels that take a mask do not share key/value heads; the fallback would hold T×T scores
        key, value = (tensor.repeat_interleave(groups, 1) for tensor in (key, value))
    d_key, d_value = query.shape[-1], value.shape[-1]
    # flash kernels want equal widths: zeros change neither scores nor outputs
    if d_value < d_key:
        value = F.pad(value, (0, d_key - d_value))
    elif d_key < d_value:
        query, key = (F.pad(tensor, (0, d_value - d_key)) for tensor in (query, key))
    output = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=inputs.mask,
        is_causal=inputs.mask is None,
        scale=inputs.scaling,
        enable_gqa=key.shape[1] != query.shape[1],
    )
    return output[..., :d_value]
