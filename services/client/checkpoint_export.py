"""A checkpoint as a Hugging Face folder, fetched file by file, each checked by its SHA-256.

Files gather in ``DIR.partial``, which takes the name DIR when it is whole. A second call finds what is there already.
"""

import hashlib
import json
from pathlib import Path

from services.client.connection import Connection, Unreachable
from services.contracts.attention_definition import CONFIG_KEY
from services.contracts.checkpoints import CheckpointDetail, CheckpointFile, CheckpointVerified
from services.contracts.errors import ErrorCode, KeyholeError

RESUME_FILE = "resume.safetensors"
README = "README.md"
_TRIES = 3  # of one file


def export(connection: Connection, detail: CheckpointDetail, folder: Path, *, resume_state: bool) -> Path:
    """Write the folder and return it; see ``Checkpoint.export``."""
    if detail.source is not None:
        raise KeyholeError(
            ErrorCode.INVALID_SOURCE,
            f"The files of checkpoint {detail.id} are not stored here: it was imported from {detail.source}.",
            "Copy them from there.",
        )
    files = [file for file in detail.files if resume_state or file.name != RESUME_FILE]
    if _is_there(folder, files):
        return folder
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise KeyholeError(
            ErrorCode.CONFLICT,
            f"{folder} is there already and is not an export of checkpoint {detail.id}.",
            "Name a folder that is not there yet, or an empty one.",
        )
    partial = folder.with_name(f"{folder.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    for stranger in {path.name for path in partial.iterdir()} - {file.name for file in files}:
        (partial / stranger).unlink()  # of an export of another checkpoint that was broken off
    for file in files:
        if not _is_whole(partial / file.name, file):
            _fetch(connection, detail.id, file, partial)
    (partial / README).write_text(readme(detail))
    if folder.exists():
        folder.rmdir()
    partial.rename(folder)
    return folder


def verify(connection: Connection, checkpoint_id: int) -> CheckpointVerified:
    answer = connection.request("POST", f"/v1/checkpoints/{checkpoint_id}/verify", timeout=3600.0)
    return CheckpointVerified.model_validate_json(answer.content)


def readme(detail: CheckpointDetail) -> str:
    """What the folder is, and whether plain transformers computes the same model."""
    loss = detail.validation_loss_nats
    facts = [
        f"run {detail.run_id}: {detail.run}",
        f"step: {detail.step}",
        f"variant: {detail.variant or 'unknown'}",
        f"architecture: {detail.model_type}",
        f"validation loss: {'not measured at this step' if loss is None else f'{loss:.4f} nats'}",
        f"stored: {detail.created_at.isoformat(timespec='seconds')} as checkpoint {detail.id}",
        f"identity: {detail.identity}",
    ]
    parts = [
        "# A checkpoint exported from Keyhole",
        "\n".join(f"- {fact}" for fact in facts),
        "Load it with `transformers.AutoModelForCausalLM.from_pretrained(FOLDER)`, or probe it with Keyhole as "
        "`path:FOLDER`.",
    ]
    if detail.attention:
        parts.append(
            f"**Plain transformers computes another attention than this model was trained with.** `{CONFIG_KEY}` in "
            f"config.json is `{json.dumps(detail.attention, sort_keys=True)}`; transformers ignores it. Keyhole "
            "honours it wherever it loads the folder."
        )
    return "\n\n".join(parts) + "\n"


def _fetch(connection: Connection, checkpoint_id: int, file: CheckpointFile, folder: Path) -> None:
    """Download one file; raises KeyholeError (checkpoint_damaged, unavailable)."""
    unfinished = folder / f".{file.name}.part"
    try:
        for left in reversed(range(_TRIES)):
            try:
                with (
                    connection.stream("GET", f"/v1/checkpoints/{checkpoint_id}/files/{file.name}") as response,
                    unfinished.open("wb") as target,
                ):
                    for piece in response.iter_bytes():
                        target.write(piece)
                if _is_whole(unfinished, file):
                    unfinished.rename(folder / file.name)
                    return
            except Unreachable:
                if left == 0:
                    raise
            # a body that ends too soon does not say why: damage does not go away by asking again
            verify(connection, checkpoint_id)
    finally:
        unfinished.unlink(missing_ok=True)
    raise KeyholeError(
        ErrorCode.UNAVAILABLE,
        f"{file.name} of checkpoint {checkpoint_id} arrived changed {_TRIES} times, though its stored bytes are sound.",
        "Something between here and the API changes what it sends; export it on the API's own machine.",
    )


def _is_there(folder: Path, files: list[CheckpointFile]) -> bool:
    return folder.is_dir() and all(_is_whole(folder / file.name, file) for file in files)


def _is_whole(path: Path, file: CheckpointFile) -> bool:
    if not path.is_file() or path.stat().st_size != file.bytes:
        return False
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest() == file.sha256
