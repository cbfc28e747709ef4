"""The vetted files of a model, alone in a folder of their own while transformers loads them.

transformers looks for more beside the weights: adapters, other weights, kernels, generation code. Here is none.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.contracts.errors import ErrorCode, KeyholeError
from services.sources.file_identity import stamp
from services.sources.model_config import harmless
from services.sources.model_folder import VettedFolder


@contextmanager
def staged(vetted: VettedFolder) -> Iterator[Path]:
    """A temporary folder with links to the vetted files and a harmless config.json.

    Raises KeyholeError (model_changed) at the end if a file was written meanwhile.
    """
    sources = {name: (vetted.folder / name).resolve() for name in vetted.files}
    stamps = {name: stamp(path) for name, path in sources.items()}
    with tempfile.TemporaryDirectory(prefix="keyhole-model-") as name:
        folder = Path(name)
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
