"""A model source resolved to its content: pinned by commit or hash, and vetted before anything loads it."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.contracts.architectures import require_supported
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.sources import ModelSource, parse_model_source
from services.contracts.training.configurations import parse_options, transformers_config
from services.sources import builtin, hub
from services.sources.file_identity import folder_sha256
from services.sources.model_config import read_config
from services.sources.model_folder import PICKLED, vet_folder
from services.sources.roots import model_path, model_roots, pinned_source
from services.sources.untrusted import untrusted


@dataclass(frozen=True)
class ResolvedModel:
    source: str  # normalised; a hub model names its commit, so that it resolves to the same content again
    identity: str  # pins the content: commit, or SHA-256 of the files
    model_type: str
    config: dict[str, Any]  # config.json, or what stands for it
    folder: Path | None  # where the files lie, if they do already
    label: str | None = None  # what to call it, where the source does not say: run and step of a checkpoint


def resolve_model(text: str, settings: Settings) -> ResolvedModel:
    """Resolve and vet a model source without loading weights.

    Raises KeyholeError: invalid_source, model_not_found, model_refused, model_unsupported or unavailable.
    """
    source = parse_model_source(text)
    if source.form == "path":
        return _folder(source, settings)
    if source.form == "hf":
        return _hub(source)
    if source.form == "builtin":
        model = builtin.smollm2(source.name)
        return ResolvedModel(str(source), model.identity, "llama", dict(builtin.SMOLLM2_CONFIG), None)
    if source.form == "config":
        return _configuration(source)
    raise KeyholeError(
        ErrorCode.INVALID_SOURCE,
        f"{source} is not known here.",
        "Checkpoints are looked up in the database: submit a job on it, or export it and name the folder by path:.",
    )


def _configuration(source: ModelSource) -> ResolvedModel:
    """A model without weights, which only training jobs take."""
    config = transformers_config(source.name, parse_options(source.name, dict(source.options)))
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    return ResolvedModel(str(source), f"config:{digest}", config["model_type"], config, None)


def _folder(source: ModelSource, settings: Settings) -> ResolvedModel:
    folder = model_path(source.name, settings)
    if not folder.exists():
        raise KeyholeError(
            ErrorCode.MODEL_NOT_FOUND, f"There is no folder {folder}.", "Workers must see it under the same path."
        )
    pinned = pinned_source(source, folder)
    with _told_with(source, str(folder)):
        vetted = vet_folder(folder, model_roots(settings))
    with untrusted(f"The model in {folder}", ErrorCode.MODEL_REFUSED, "Check that its files can be read."):
        identity = f"sha256:{folder_sha256(folder, list(vetted.files))}"
    return ResolvedModel(str(pinned), identity, vetted.model_type, vetted.config, folder)


def _hub(source: ModelSource) -> ResolvedModel:
    commit, files = hub.model_commit(source.name, source.revision)
    if files is not None:
        _require_safetensors(source, files)
    path = hub.model_file(source.name, source.revision, commit, "config.json")
    with _told_with(source, source.name):
        config = read_config(path)
        model_type = require_supported(config)
    pinned = ModelSource(form="hf", name=source.name, revision=commit)
    return ResolvedModel(str(pinned), str(pinned), model_type, config, None)


@contextmanager
def _told_with(source: ModelSource, name: str) -> Iterator[None]:
    """What is wrong with one model of a series says which, unless it has its name already."""
    try:
        yield
    except KeyholeError as error:
        if name in error.message:
            raise
        raise KeyholeError(error.code, f"In {source}: {error.message}", error.hint) from error


def _require_safetensors(source: ModelSource, files: list[str]) -> None:
    if "config.json" not in files:
        raise KeyholeError(
            ErrorCode.MODEL_REFUSED,
            f"{source} has no config.json.",
            "Name a repository in transformers' format, not an adapter or a GGUF.",
        )
    if any("/" not in file and file.endswith(".safetensors") for file in files):
        return
    pickled = [file for file in files if file.endswith(PICKLED)]
    have = f"only {', '.join(pickled[:3])}, which can run code when loaded" if pickled else "no weights"
    raise KeyholeError(
        ErrorCode.MODEL_REFUSED,
        f"{source} has no safetensors file but {have}.",
        "Many repositories have a converted revision, e.g. @refs/pr/1; name a revision with safetensors.",
    )
