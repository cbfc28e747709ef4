"""The tokenizer of a model source, without its weights."""

import shutil
import tempfile
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from services.contracts.settings import Settings
from services.contracts.sources import ModelSource, parse_model_source
from services.sources import builtin, hub
from services.sources.model_folder import TOKENIZER_FILES, vet_folder, vet_tokenizer_files
from services.sources.roots import model_path
from services.sources.tokenizers import LARGEST_VOCABULARY, resolve_tokenizer, tokenizer_files
from workers.models import gguf
from workers.models.staging import staged
from workers.models.tokenizer import load_tokenizer


def tokenizer_of_source(source: str, settings: Settings) -> PreTrainedTokenizerFast:
    """Raises KeyholeError as resolve_tokenizer does."""
    parsed = parse_model_source(resolve_tokenizer(source, settings).source)
    if parsed.form == "hf":
        return _of_hub(parsed)
    if parsed.form == "path":
        return _of_folder(model_path(parsed.name, settings), settings)
    with staged(vet_folder(gguf.converted_folder(builtin.smollm2(parsed.name), settings)), settings) as folder:
        return load_tokenizer(folder)


def _of_folder(folder: Path, settings: Settings) -> PreTrainedTokenizerFast:
    """From copies, which are vetted in their turn: the folder may change meanwhile."""
    names = tokenizer_files(folder, settings)
    with tempfile.TemporaryDirectory() as name:
        copied = Path(name)
        for each in names:
            shutil.copyfile(folder / each, copied / each)
        vet_tokenizer_files(copied, names, LARGEST_VOCABULARY)
        return load_tokenizer(copied)


def _of_hub(source: ModelSource) -> PreTrainedTokenizerFast:
    """Of the repository's files only those of the tokenizer are fetched, and loaded from a folder with nothing else."""
    commit, files = hub.model_commit(source.name, source.revision)
    snapshot = hub.model_file(source.name, source.revision, commit, "tokenizer.json").parent
    if files is not None:
        for name in TOKENIZER_FILES[1:]:
            if name in files:
                hub.model_file(source.name, source.revision, commit, name)
    names = [name for name in TOKENIZER_FILES if (snapshot / name).is_file()]
    vet_tokenizer_files(snapshot, names, LARGEST_VOCABULARY)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            (Path(folder) / name).symlink_to((snapshot / name).resolve())
        return load_tokenizer(Path(folder))
