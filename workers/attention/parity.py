"""Does the model give the same logits through the seam as with its own attention?"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from services.contracts.errors import ErrorCode, KeyholeError
from workers.attention import seam

# Allowed ‖difference of logits‖ / ‖logits‖ by the model's dtype. Measured between seam and eager attention on the test
# families: up to 8e-7 in float32 and 2.2e-2 in bfloat16 (a router's expert may flip there; the room above is for deeper
# models, assumed). Float64 is no better than float32, since eager attention rounds its softmax to float32. A lost
# causal mask moves the logits by half and more.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.bfloat16: 1e-1}


def check(model: PreTrainedModel, token_ids: Int[Tensor, "sequence position"]) -> dict[str, float | str | int]:
    """Compare logits on a few tokens and leave the model attached to the seam.

    Returns what is stored with the job: the reference attention, tokens compared, the largest difference of a logit,
    the norm of all differences in units of that of the logits, and the tolerance of the latter. Raises KeyholeError:
    parity_failed beyond the tolerance, model_unsupported if the model does not call the seam once per layer.
    """
    token_ids = token_ids.to(model.device)
    reference, expected = _own_logits(model, token_ids)
    _require_usable(model, expected)
    seam.attach(model)
    with seam.observing(model):
        observed = _logits(model, token_ids)
    difference = observed - expected
    relative = float(difference.norm() / expected.norm())
    tolerance = TOLERANCE[model.dtype]
    if not relative <= tolerance:  # also when it is not a number
        raise KeyholeError(
            ErrorCode.PARITY_FAILED,
            f"Logits of {model.config.model_type} in {str(model.dtype).removeprefix('torch.')} through the seam differ "
            f"from its own {reference} attention by {relative:.3g} of their norm; {tolerance:g} is allowed.",
            "Try dtype float32. If it stays, the architecture does something the seam does not know: report it.",
        )
    return {
        "reference": reference,
        "tokens": token_ids.numel(),
        "logit_difference": float(difference.abs().max()),
        "logit_difference_relative": relative,
        "tolerance_relative": tolerance,
    }


def _own_logits(model: PreTrainedModel, token_ids: Tensor) -> tuple[str, Float[Tensor, "sequence position token"]]:
    """Logits with the model's own eager attention, or with SDPA where it has none."""
    try:
        try:
            model.set_attn_implementation("eager")
            return "eager", _logits(model, token_ids)
        except (ValueError, NotImplementedError, KeyError):
            model.set_attn_implementation("sdpa")
            return "sdpa", _logits(model, token_ids)
    except Exception as error:  # transformers' code alone ran here, on a config that a user wrote
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise
        raise KeyholeError(
            ErrorCode.MODEL_REFUSED,
            f"This {model.config.model_type} model fails with its own attention: {type(error).__name__}: {error}",
            "Check that it gives logits for a few tokens in transformers; its config.json may not fit.",
        ) from error


def _require_usable(model: PreTrainedModel, logits: Tensor) -> None:
    """Logits that are no numbers, or all zero, cannot be compared, and say that the model is of no use."""
    dtype = str(model.dtype).removeprefix("torch.")
    if not logits.isfinite().all():
        raise KeyholeError(
            ErrorCode.MODEL_REFUSED,
            f"The model's own logits are not all finite in {dtype}.",
            "Its weights or config.json may be damaged; in bfloat16, try dtype float32.",
        )
    if not logits.any():
        raise KeyholeError(
            ErrorCode.MODEL_REFUSED, "The model's own logits are all zero.", "Its weights may never have been filled."
        )


def _logits(model: PreTrainedModel, token_ids: Tensor) -> Float[Tensor, "sequence position token"]:
    with torch.no_grad():
        logits = model(token_ids, use_cache=False, return_dict=True).logits
    return logits if logits.dtype == torch.float64 else logits.float()
