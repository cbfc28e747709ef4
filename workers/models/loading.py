"""Load a model: resolve, vet, stage, load without code, attach the attention seam, compare with its own attention."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from services.contracts.attention_definition import AttentionDefinition
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.sources import parse_model_source
from services.sources import builtin, resolve_model
from services.sources.file_identity import folder_sha256
from services.sources.model_folder import VettedFolder, vet_folder
from services.sources.roots import model_roots
from workers.attention import parity, seam
from workers.models import gguf, hub
from workers.models.loaded import Architecture, LoadedModel, describe
from workers.models.outline import require_all_weights, require_finite, require_fit
from workers.models.staging import staged
from workers.models.tokenizer import load_tokenizer

_PARITY_TOKENS = 48


def load_model(
    source: str, *, device: str, dtype: str, settings: Settings, checkpoint: Path | None = None
) -> LoadedModel:
    """Load a model for measuring: eval mode, frozen, attention through the seam, parity checked.

    ``device`` is a torch device, ``dtype`` "float32" or "bfloat16"; ``checkpoint`` is a folder with the files of the
    checkpoint that ``source`` names, which only the database has. Raises KeyholeError as resolve_model does, and
    model_refused (weights that do not fit), model_unsupported, model_changed, parity_failed.
    """
    if checkpoint is not None:
        return load_folder(checkpoint, device=device, dtype=dtype, settings=settings)
    resolved = resolve_model(source, settings)
    loaded = _loaded(_on_this_machine(resolved.source, settings), resolved.identity, device, dtype, settings)
    if resolve_model(resolved.source, settings).identity != resolved.identity:
        raise KeyholeError(
            ErrorCode.MODEL_CHANGED,
            f"The files of {source} changed while the model was loaded.",
            "Submit the job again when they are at rest.",
        )
    return loaded


def load_folder(folder: Path, *, device: str, dtype: str, settings: Settings) -> LoadedModel:
    """The same for a folder of Keyhole's own, whose identity is the digest of its files; raises as load_model does."""
    vetted = vet_folder(folder)
    identity = f"sha256:{folder_sha256(folder, list(vetted.files))}"
    return _loaded(vetted, identity, device, dtype, settings)


def _loaded(vetted: VettedFolder, identity: str, device: str, dtype: str, settings: Settings) -> LoadedModel:
    with staged(vetted, settings) as folder:
        tokenizer = load_tokenizer(folder) if vetted.has_tokenizer else None
        model = _load(folder, vetted, device, dtype)
    definition = AttentionDefinition.of_config(model.config.to_dict())
    architecture = describe(model)
    difference = parity.check(model, parity_tokens(architecture, device))
    seam.define(model, definition)  # after the check: transformers' own attention knows nothing of it
    return LoadedModel(model, tokenizer, identity, architecture, difference, device, dtype)


def _on_this_machine(source: str, settings: Settings) -> VettedFolder:
    parsed = parse_model_source(source)
    if parsed.form == "builtin":
        return vet_folder(gguf.converted_folder(builtin.smollm2(parsed.name), settings))
    if parsed.form == "hf":
        return hub.download(parsed)
    return vet_folder(Path(parsed.name), model_roots(settings))


def _load(folder: Path, vetted: VettedFolder, device: str, dtype: str) -> PreTrainedModel:
    """transformers' own loading, from local safetensors only; every weight must be in the files, and every one used."""
    transformers_logging.disable_progress_bar()
    try:
        require_fit(folder, vetted.tensors, getattr(torch, dtype))
        model, info = AutoModelForCausalLM.from_pretrained(  # type: ignore[misc]  # output_loading_info makes it two
            str(folder),
            dtype=getattr(torch, dtype),
            attn_implementation="eager",  # parity.check compares with it and attaches the seam
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused, by name
        )
    except Exception as error:  # a config may break it anywhere: ZeroDivisionError, AssertionError, its own types
        if isinstance(error, KeyholeError | MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(
            error
        ):
            raise
        raise KeyholeError(
            ErrorCode.MODEL_REFUSED,
            f"transformers cannot load this {vetted.model_type} model: {type(error).__name__}: {error}",
            "Check that AutoModelForCausalLM.from_pretrained loads the folder.",
        ) from error
    require_all_weights(info)
    require_finite(model)
    return model.eval().requires_grad_(False).to(device)


def parity_tokens(architecture: Architecture, device: str) -> torch.Tensor:
    """Token ids spread over the vocabulary, the same for every load of a model."""
    length = min(_PARITY_TOKENS, architecture.n_ctx or _PARITY_TOKENS)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(architecture.vocabulary_size, (1, length), generator=generator).to(device)
