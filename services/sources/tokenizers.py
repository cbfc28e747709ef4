"""The tokenizer of a model source resolved to its content, without the model's weights."""

from dataclasses import dataclass
from pathlib import Path

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.sources import ModelSource, parse_model_source
from services.sources import builtin, hub
from services.sources.file_identity import folder_sha256
from services.sources.model_folder import TOKENIZER_FILES, refuse_escape, vet_tokenizer_files
from services.sources.roots import model_path, model_roots, pinned_source
from services.sources.untrusted import untrusted

LARGEST_VOCABULARY = 1 << 20  # of which ids are plausible; the model's own size is not looked at


@dataclass(frozen=True)
class ResolvedTokenizer:
    source: str  # normalised; of the hub with its commit
    identity: str  # pins the content: commit, or SHA-256 of the tokenizer's files


def resolve_tokenizer(text: str, settings: Settings) -> ResolvedTokenizer:
    """Raises KeyholeError: invalid_source, model_not_found, model_refused, unavailable."""
    source = parse_model_source(text)
    if source.form == "hf":
        commit, files = hub.model_commit(source.name, source.revision)
        if files is not None and "tokenizer.json" not in files:
            raise without_tokenizer(str(source))
        pinned = str(ModelSource(form="hf", name=source.name, revision=commit))
        return ResolvedTokenizer(pinned, pinned)
    if source.form == "builtin":
        return ResolvedTokenizer(str(source), builtin.smollm2(source.name).identity)
    if source.form == "path":
        folder = model_path(source.name, settings)
        pinned = str(pinned_source(source, folder))
        names = tokenizer_files(folder, settings)
        return ResolvedTokenizer(pinned, f"sha256:{folder_sha256(folder, names)}")
    raise KeyholeError(
        ErrorCode.INVALID_REQUEST,
        f"data.tokenizer is {source}.",
        "Set it to auto, bpe:SIZE, none, or to hf:, path: or builtin: of a model whose tokenizer to take.",
    )


def tokenizer_files(folder: Path, settings: Settings) -> list[str]:
    """Names of the tokenizer's files in a folder, vetted; raises KeyholeError (model_not_found, model_refused)."""
    if not folder.is_dir():
        raise KeyholeError(
            ErrorCode.MODEL_NOT_FOUND, f"There is no folder {folder}.", "Workers must see it under the same path."
        )
    names = [name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if "tokenizer.json" not in names:
        raise without_tokenizer(f"path:{folder}")
    with untrusted(f"The tokenizer in {folder}", ErrorCode.MODEL_REFUSED, "Save the tokenizer again."):
        for name in names:
            refuse_escape(folder, name, model_roots(settings))
        vet_tokenizer_files(folder, names, LARGEST_VOCABULARY)
    return names


def without_tokenizer(source: str) -> KeyholeError:
    return KeyholeError(
        ErrorCode.MODEL_REFUSED,
        f"{source} has no tokenizer.json.",
        "Save its tokenizer with save_pretrained, or set data.tokenizer to auto.",
    )
