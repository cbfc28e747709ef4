"""The vetted files of a model, alone in a folder of their own while transformers loads them.

transformers looks for more beside the weights: adapters, other weights, kernels, generation code. Here is none.
"""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.sources.file_identity import stamp
from services.sources.model_config import harmless
from services.sources.model_folder import VettedFolder


@contextmanager
def staged(vetted: VettedFolder, settings: Settings) -> Iterator[Path]:
    """A folder in the cache with links to the vetted files and a harmless config.json, removed at the end.

    Raises KeyholeError (model_changed) at the end if a file was written meanwhile.
    """
    sources = {name: (vetted.folder / name).resolve() for name in vetted.files}
    stamps = {name: stamp(path) for name, path in sources.items()}
    with folder_of_this_process(settings.cache / "loading") as folder:
        for file, path in sources.items():
            if file == "config.json":
                (folder / file).write_text(json.dumps(harmless(vetted.config)))
            else:
                (folder / file).symlink_to(path)
        yield folder
    written = [name for name, path in sources.items() if stamp(path) != stamps[name]]
    if written:
        raise KeyholeError(
            ErrorCode.MODEL_CHANGED,
            f"{', '.join(written)} in {vetted.folder} changed while the model was loaded.",
            "Submit the job again when the files are at rest.",
        )


@contextmanager
def folder_of_this_process(parent: Path) -> Iterator[Path]:
    """An empty folder below ``parent``; those of processes that were killed are removed when nobody else loads."""
    parent.mkdir(parents=True, exist_ok=True)
    with (parent / "lock").open("w") as lock:  # shared by all who load, on whatever machine; the kernel releases it
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for leftover in parent.iterdir():
                if leftover.is_dir():
                    shutil.rmtree(leftover, ignore_errors=True)
        fcntl.flock(lock, fcntl.LOCK_SH)
        with tempfile.TemporaryDirectory(prefix=f"{os.getpid()}-", dir=parent) as name:
            yield Path(name)
