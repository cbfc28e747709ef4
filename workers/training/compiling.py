"""Training passes compiled by ``torch.compile``. Validations, observers and checkpoints use the model as it is."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException
from torch._inductor.exc import InductorError

from services.contracts.errors import ErrorCode, KeyholeError
from workers.training.variants import Installed


def compiled(model: nn.Module, installed: Installed, backend: str = "inductor") -> nn.Module:
    """The model, compiled when it is first called; raises KeyholeError (invalid_request) with a query gradient.

    A compiled pass does not see what is bound to the seam, so that a transform of the gradient would be left out.
    """
    if installed.query_gradient is not None:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            "compile is set, and a variant of the run changes the query gradient, which a compiled pass cannot take.",
            "Submit it without compile.",
        )
    return torch.compile(model, backend=backend)  # type: ignore[return-value]  # a module stays one


@contextmanager
def compiling() -> Iterator[None]:
    """Turn failures of the compiler into KeyholeError (model_unsupported)."""
    try:
        yield
    except (TorchDynamoException, BackendCompilerFailed, InductorError) as error:
        raise KeyholeError(
            ErrorCode.MODEL_UNSUPPORTED,
            f"torch.compile cannot compile this model here: {str(error).strip()[:500]}",
            "Submit it without compile; on a CPU it needs a C++ compiler.",
        ) from error
