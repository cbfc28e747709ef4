"""Hub repositories: a revision resolved to its commit, online or out of the local cache."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

import httpx2  # the client of huggingface_hub
from huggingface_hub import HfApi, constants, hf_hub_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import repo_folder_name

from services.contracts.errors import ErrorCode, KeyholeError

TIMEOUT_S = 5.0  # without a byte; a submission waits for it, and a cache may answer instead
_COMMIT = re.compile("[0-9a-f]{40}")
NOT_REACHED = (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, httpx2.HTTPError, OSError)

Result = TypeVar("Result")
RepositoryType = Literal["model", "dataset"]


def model_commit(name: str, revision: str | None) -> tuple[str, list[str] | None]:
    """Commit of a model's revision, and the names of its files (None when only the cache could be asked)."""

    def ask() -> tuple[str, list[str] | None]:
        info = HfApi().model_info(name, revision=revision, timeout=TIMEOUT_S)
        return str(info.sha), [file.rfilename for file in info.siblings or ()]

    return _online_or_cached("model", name, revision, ask, lambda commit: (commit, None))


def revisions(name: str) -> list[str]:
    """Branches and tags of a model; only the hub can tell, the cache does not know them all."""

    def ask() -> list[str]:
        references = HfApi().list_repo_refs(name)
        return [reference.name for reference in (*references.branches, *references.tags)]

    def from_cache(commit: str) -> list[str]:
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            f"The hub does not answer, and only it knows the revisions of {name}.",
            "Name single revisions that are in the cache, or try again later.",
        )

    return list(dict.fromkeys(_online_or_cached("model", name, None, ask, from_cache)))


def dataset_commit(name: str, revision: str | None) -> str:
    """Commit of a data set's revision."""

    def ask() -> str:
        return str(HfApi().dataset_info(name, revision=revision, timeout=TIMEOUT_S).sha)

    return _online_or_cached("dataset", name, revision, ask, lambda commit: commit)


def model_file(name: str, revision: str | None, commit: str, file: str) -> Path:
    """One small file of a model at the commit of its revision, downloaded or out of the cache."""
    try:
        # by revision first: only then the cache remembers the revision's commit for times without network
        path = Path(hf_hub_download(name, file, revision=revision or "main", etag_timeout=TIMEOUT_S))
        if path.parent.name == commit:
            return path
        return Path(hf_hub_download(name, file, revision=commit, etag_timeout=TIMEOUT_S))
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise _not_found("model", name, commit) from error
    except NOT_REACHED as error:
        raise unreachable("model", name, error) from error


def cached_commit(kind: RepositoryType, name: str, revision: str | None) -> str | None:
    """The commit a revision had when the cache last saw it.

    A model must be in the cache; a data set named by its commit needs not be: its tokens may be cached instead.
    """
    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type=kind)
    commit = revision or "main"
    reference = folder / "refs" / commit
    if ".." not in commit and reference.is_file():
        commit = reference.read_text().strip()
    if not _COMMIT.fullmatch(commit):
        return None
    return commit if kind == "dataset" or (folder / "snapshots" / commit).is_dir() else None


def unreachable(kind: RepositoryType, name: str, error: Exception) -> KeyholeError:
    return KeyholeError(
        ErrorCode.UNAVAILABLE,
        f"The hub does not answer for the {kind} {name} ({type(error).__name__}), and it is not in the local cache.",
        f"Check the network and HF_HUB_OFFLINE, or download it once on every worker: hf download {name}.",
    )


def _online_or_cached(
    kind: RepositoryType,
    name: str,
    revision: str | None,
    ask: Callable[[], Result],
    from_cache: Callable[[str], Result],
) -> Result:
    try:
        return ask()
    except GatedRepoError as error:
        raise KeyholeError(
            ErrorCode.MODEL_NOT_FOUND if kind == "model" else ErrorCode.DATASET_NOT_FOUND,
            f"The {kind} {name} is gated.",
            "Accept its terms on the hub and set HF_TOKEN for the API and the workers.",
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise _not_found(kind, name, revision) from error
    except NOT_REACHED as error:
        commit = cached_commit(kind, name, revision)
        if commit is None:
            raise unreachable(kind, name, error) from error
        return from_cache(commit)


def _not_found(kind: RepositoryType, name: str, revision: str | None) -> KeyholeError:
    return KeyholeError(
        ErrorCode.MODEL_NOT_FOUND if kind == "model" else ErrorCode.DATASET_NOT_FOUND,
        f"The hub has no {kind} {name}" + (f" at revision {revision}." if revision else "."),
        "Check its spelling; a private one needs HF_TOKEN for the API and the workers.",
    )
