"""σReparam: every linear layer's weight is W·γ/σ(W) with a learned γ.

Zhai et al. 2023, "Stabilizing Transformer Training by Preventing Attention Entropy Collapse"
(https://arxiv.org/abs/2303.06296). The spectral norm of the weight is then γ itself, one number that the optimizer
moves by about its learning rate whatever the width. From scratch γ starts at 1; in a pretrained model at σ(W), which
leaves its function as it was.
"""

from collections.abc import Callable

from transformers import PreTrainedModel

from workers.training.variants.reparametrization import reparametrise


def install(model: PreTrainedModel, *, pretrained: bool) -> Callable[[], None]:
    """Reparametrise every linear layer; returns what is to be called after each optimizer step."""
    return reparametrise(model, learned=True, keep_function=pretrained)
