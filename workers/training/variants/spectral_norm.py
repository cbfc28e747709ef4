"""Spectral normalisation: every linear layer's weight is W/σ(W), that of σReparam with γ fixed at 1.

Miyato et al. 2018 (https://arxiv.org/abs/1802.05957). Zhai et al. 2023 report 69.81 % for it against 82.2 % with the
learned γ. A pretrained model's function changes at once: every matrix then has norm 1.
"""

from collections.abc import Callable

from transformers import PreTrainedModel

from workers.training.variants.reparametrization import reparametrise


def install(model: PreTrainedModel) -> Callable[[], None]:
    """Reparametrise every linear layer; returns what is to be called after each optimizer step."""
    return reparametrise(model, learned=False, keep_function=False)
