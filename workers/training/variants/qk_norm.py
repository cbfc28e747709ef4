"""QK-norm: queries and keys with root mean square 1 before the dot product, no learned gain.

    s_ij = c · q̂_i·k̂_j,        x̂ = x / √(mean(x²) + 10⁻⁶)

by head, after the rotary embedding and whatever the architecture does itself. |s| ≤ c·d: with c = 1/√d no score passes
√d. Henry et al. 2020 (https://arxiv.org/abs/2010.04245) normalise to length 1 and learn the scale; with root mean
square 1 and a fixed one it is the form of the GPT-2 speed runs, whose scale is 0.12 at d = 128.

Computed in the seam (``workers/attention/seam.py``), since a trained checkpoint needs it too.
"""

from services.contracts.attention_definition import AttentionDefinition
from services.contracts.training.variants import QkNorm


def changed(definition: AttentionDefinition, variant: QkNorm) -> AttentionDefinition:
    """The definition with normalised queries and keys, and the variant's scale if it has one."""
    scale = definition.scale if variant.scale is None else variant.scale
    return definition.model_copy(update={"qk_norm": True, "scale": scale})
