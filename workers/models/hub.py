"""Hub models on this machine: only the files that may be loaded are downloaded, at one commit."""

from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.sources import ModelSource
from services.sources.hub import NOT_REACHED, unreachable
from services.sources.model_folder import INDEX, TOKENIZER_FILES, VettedFolder, vet_folder

_FILES = ["config.json", INDEX, "*.safetensors", *TOKENIZER_FILES]


def download(source: ModelSource) -> VettedFolder:
    """The vetted snapshot of a hub model whose revision is a commit."""
    try:
        # a pattern without "/" also matches in sub-folders: leave out what lies there, such as original weights
        folder = snapshot_download(
            source.name, revision=source.revision, allow_patterns=_FILES, ignore_patterns=["*/*"]
        )
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise KeyholeError(
            ErrorCode.MODEL_NOT_FOUND, f"The hub no longer has {source}.", "Check its name, or HF_TOKEN on the worker."
        ) from error
    except NOT_REACHED as error:
        raise unreachable("model", source.name, error) from error
    return vet_folder(Path(folder), (Path(constants.HF_HUB_CACHE),))
