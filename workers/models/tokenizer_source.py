"""The tokenizer of a model source, without its weights."""

import tempfile
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.sources import ModelSource, parse_model_source
from services.sources import builtin, hub
from services.sources.model_folder import TOKENIZER_FILES, vet_folder, vet_tokenizer_files
from services.sources.roots import model_path, model_roots
from workers.models import gguf
from workers.models.staging import staged
from workers.models.tokenizer import load_tokenizer

_LARGEST_VOCABULARY = 1 << 20  # of which ids are plausible; the model's own size is not looked at


def tokenizer_of_source(source: str, settings: Settings) -> PreTrainedTokenizerFast:
    """Raises KeyholeError: as resolve_model does, and model_refused for a model without tokenizer.json."""
    parsed = parse_model_source(source)
    if parsed.form == "hf":
        return _of_hub(parsed)
    if parsed.form == "builtin":
        vetted = vet_folder(gguf.converted_folder(builtin.smollm2(parsed.name), settings))
    elif parsed.form == "path":
        vetted = vet_folder(model_path(parsed.name, settings), model_roots(settings))
    else:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"data.tokenizer is {source}.",
            "Set it to auto, bpe:SIZE, none, or to hf:, path: or builtin: of a model whose tokenizer to take.",
        )
    if not vetted.has_tokenizer:
        raise _without(source)
    with staged(vetted, settings) as folder:
        return load_tokenizer(folder)


def _of_hub(source: ModelSource) -> PreTrainedTokenizerFast:
    """Of the repository's files only those of the tokenizer are fetched, and loaded from a folder with nothing else."""
    commit, files = hub.model_commit(source.name, source.revision)
    if files is not None and "tokenizer.json" not in files:
        raise _without(str(source))
    snapshot = hub.model_file(source.name, source.revision, commit, "tokenizer.json").parent
    if files is not None:
        for name in TOKENIZER_FILES[1:]:
            if name in files:
                hub.model_file(source.name, source.revision, commit, name)
    names = [name for name in TOKENIZER_FILES if (snapshot / name).is_file()]
    vet_tokenizer_files(snapshot, names, _LARGEST_VOCABULARY)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            (Path(folder) / name).symlink_to((snapshot / name).resolve())
        return load_tokenizer(Path(folder))


def _without(source: str) -> KeyholeError:
    return KeyholeError(
        ErrorCode.MODEL_REFUSED,
        f"{source} has no tokenizer.json.",
        "Save its tokenizer with save_pretrained, or set data.tokenizer to auto.",
    )
