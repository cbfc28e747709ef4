"""Routing: sigmoid weights (equation 38), and scores averaged over the heads of a layer (equations 34–36).

    sigmoid          a_hij = sigmoid(s_hij + b)
    shared_softmax   a_ij  = softmax over the row of s̄_i,        s̄_ij = (1/H) Σ_h s_hij
    shared_sigmoid   a_ij  = sigmoid(s̄_ij + b)

of "Stuck in a Loop" (https://hyperstition.cc/stuck-in-a-loop). b is a number, or −log n with n the keys in the row
(Ramapuram et al. 2024, https://arxiv.org/abs/2409.04431). It is not learned.

Computed in the seam (``workers/attention/{sigmoid,shared}.py``), since a trained checkpoint needs it too.
"""

from services.contracts.attention_definition import AttentionDefinition
from services.contracts.training.variants import ROUTINGS, SharedSigmoid, SharedSoftmax, Sigmoid


def changed(definition: AttentionDefinition, variant: Sigmoid | SharedSigmoid | SharedSoftmax) -> AttentionDefinition:
    """The definition with the variant's routing and bias."""
    bias = None if isinstance(variant, SharedSoftmax) else variant.bias
    return definition.model_copy(update={"routing": ROUTINGS[variant.name], "sigmoid_bias": bias})
