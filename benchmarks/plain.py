"""What the benchmarks of the probes have in common: options, model and tokens, and the plain passes they compare with.

A plain pass is what anybody would run without Keyhole: the same model and tokens, weights frozen, SDPA attention,
torch's cross-entropy. Forward alone it leaves out all logits but the last position's, where the model lets it.
"""

import argparse
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from services.contracts.probes.common import ProbeParameters
from services.contracts.settings import settings
from workers.attention import seam
from workers.data import read_sequences
from workers.models import LoadedModel, load_model

P = TypeVar("P", bound=ProbeParameters)

OPTIONS: dict[str, dict[str, Any]] = {
    "model": {"default": "builtin:smollm2-135m-instruct"},
    "dataset": {"default": "builtin:python-docs"},
    "sequences": {"type": int, "default": 1, "help": "sequences in each round"},
    "length": {"type": int, "default": 1024},
    "step": {"type": int, "default": 4, "help": "distance between measured queries"},
    "dtype": {"choices": ["float32", "bfloat16"], "default": "float32"},
    "device": {"default": "cpu"},
    "threads": {"type": int, "default": 0, "help": "threads of torch; 0 leaves its choice"},
    "rounds": {"type": int, "default": 5},
}


def parser(
    description: str | None, fixed: Mapping[str, object] = MappingProxyType({}), **defaults: object
) -> argparse.ArgumentParser:
    """The common options, with other ``defaults``; those that are ``fixed`` cannot be given."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, option in OPTIONS.items():
        if name not in fixed:
            found.add_argument(f"--{name}", **option)
    found.set_defaults(**fixed, **defaults)
    return found


def load(options: argparse.Namespace, source: str | None = None) -> LoadedModel:
    """The model of the options or another one, loaded and checked as a job does it; sets torch's threads."""
    if options.threads:
        torch.set_num_threads(options.threads)
    return load_model(source or options.model, device=options.device, dtype=options.dtype, settings=settings())


def read_tokens(loaded: LoadedModel, options: argparse.Namespace, batches: int = 1) -> np.ndarray:
    """Token ids [batch, sequence, position], every batch of other sequences."""
    token_set = read_sequences(
        options.dataset,
        tokenizer=loaded.tokenizer,
        vocabulary_size=loaded.architecture.vocabulary_size,
        sequences=options.sequences * batches,
        length=options.length,
        settings=settings(),
    )
    return token_set.token_ids.reshape(batches, options.sequences, options.length)


def on_device(loaded: LoadedModel, token_ids: np.ndarray) -> Tensor:
    return torch.as_tensor(token_ids, dtype=torch.int64, device=loaded.model.device)


def job_parameters(parameters: type[P], options: argparse.Namespace, **more: object) -> P:
    """Those of a job as the options have it, all sequences in one pass, queries from 32 on."""
    queries = {"start": min(32, options.length - 2)}
    if options.step is not None:
        queries["step"] = options.step
    common = {"sequences": options.sequences, "batch": options.sequences, "queries": queries}
    return parameters.model_validate({**common, "length": options.length, "dtype": options.dtype, **more})


@contextmanager
def sdpa(*models: LoadedModel) -> Iterator[None]:
    """Attention as torch has it, instead of the seam's."""
    for each in models:
        each.model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        for each in models:
            seam.attach(each.model)


def forward(loaded: LoadedModel, ids: Tensor) -> None:
    """Without logits but the last."""
    with torch.no_grad():
        loaded.model(ids, use_cache=False, **_last_logits_only(loaded))


def forward_and_backward(loaded: LoadedModel, ids: Tensor) -> None:
    """Back to the embeddings, of the mean loss over all predictions."""
    embeddings = loaded.model.get_input_embeddings()(ids).requires_grad_()
    logits = loaded.model(inputs_embeds=embeddings, use_cache=False).logits
    F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten()).backward()


def patterns(loaded: LoadedModel, ids: Tensor) -> tuple[Tensor, ...]:
    """Whole patterns [layer][batch, head, query, key], all at once; the model's attention must be "eager"."""
    with torch.no_grad():
        return loaded.model(ids, use_cache=False, output_attentions=True, **_last_logits_only(loaded)).attentions


def _last_logits_only(loaded: LoadedModel) -> dict[str, int]:
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(loaded.model.forward).parameters else {}
