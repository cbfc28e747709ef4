"""A checkpoint as a Hugging Face folder, fetched file by file, each checked by its SHA-256.

Files gather in ``DIR.partial``, which is marked as ours, and get the name DIR when all are there. A second call finds
what is there already; one at the same time waits for the first.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from services.client.connection import Connection, Unreachable
from services.client.export_turn import MARKER, turn
from services.contracts.attention_definition import CONFIG_KEY
from services.contracts.checkpoints import CheckpointDetail, CheckpointFile, CheckpointVerified
from services.contracts.errors import ErrorCode, KeyholeError

RESUME_FILE = "resume.safetensors"
README = "README.md"
_TRIES = 3  # of one file


def export(
    connection: Connection,
    detail: CheckpointDetail,
    folder: Path,
    *,
    resume_state: bool,
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write the folder and return it; see ``Checkpoint.export``."""
    if detail.source is not None:
        raise KeyholeError(
            ErrorCode.INVALID_SOURCE,
            f"The files of checkpoint {detail.id} are not stored here: it was imported from {detail.source}.",
            "Copy them from there.",
        )
    folder = folder.resolve()  # "." has no name to put ".partial" after
    files = [file for file in detail.files if resume_state or file.name != RESUME_FILE]
    if not folder.name:
        _require_room(folder, files, detail)
    partial = folder.with_name(f"{folder.name}.partial")
    while not _is_there(folder, files):
        with turn(partial, say) as ours:
            if ours and not _is_there(folder, files):  # another export may have ended meanwhile
                _require_room(folder, files, detail)
                _fill(connection, detail, files, partial, folder)
                break
    return folder


def _fill(
    connection: Connection, detail: CheckpointDetail, files: list[CheckpointFile], partial: Path, folder: Path
) -> None:
    for stranger in {path.name for path in partial.iterdir()} - {file.name for file in files} - {MARKER}:
        (partial / stranger).unlink()  # of an export of another checkpoint that was broken off
    for file in files:
        if not _is_whole(folder / file.name, file) and not _is_whole(partial / file.name, file):
            _fetch(connection, detail.id, file, partial)
    (partial / README).write_text(readme(detail))
    _move(partial, folder, files)


def _require_room(folder: Path, files: list[CheckpointFile], detail: CheckpointDetail) -> None:
    """Raise KeyholeError (conflict) unless the folder is not there or holds nothing but files of the export."""
    expected = {file.name: file for file in files}
    if not folder.name or (folder.exists() and not folder.is_dir()):
        differing, strange = [], [str(folder)]
    else:
        found = sorted(folder.iterdir()) if folder.exists() else []
        told = readme(detail).encode()
        differing = [path.name for path in found if path.name in expected and not _is_whole(path, expected[path.name])]
        differing += [path.name for path in found if path.name == README and not _holds(path, told)]
        strange = [path.name for path in found if path.name not in expected and path.name != README]
    problems = [f"{_some(differing)} differ{'s' if len(differing) == 1 else ''} from the stored one"] * bool(differing)
    problems += [f"{_some(strange)} {'is' if len(strange) == 1 else 'are'} not of it"] * bool(strange)
    if problems:
        raise KeyholeError(
            ErrorCode.CONFLICT,
            f"{folder} is there already and is not an export of checkpoint {detail.id}: {'; '.join(problems)}.",
            "Name a folder that is not there yet, or an empty one"
            + ("." if strange else "; or delete what differs there, and export again to have it anew."),
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


def _move(partial: Path, folder: Path, files: list[CheckpointFile]) -> None:
    """Give the files their place. A folder that was there stays that folder: a shell may be in it, or it is a mount."""
    if not folder.exists():
        partial.rename(folder)
        (folder / MARKER).unlink()
        return
    for name in (*(file.name for file in files), README):
        if (partial / name).exists():
            shutil.move(partial / name, folder / name)
    (partial / MARKER).unlink()
    partial.rmdir()


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
    changed = 0
    try:
        for number in range(1, _TRIES + 1):
            begun, lost = False, None
            try:
                with (
                    connection.stream("GET", f"/v1/checkpoints/{checkpoint_id}/files/{file.name}") as response,
                    unfinished.open("wb") as target,
                ):
                    begun = True
                    for piece in response.iter_bytes():
                        target.write(piece)
                if _is_whole(unfinished, file):
                    unfinished.rename(folder / file.name)
                    return
                changed += 1
            except Unreachable as error:
                lost = error
            if begun:
                lost = _lost_or_damaged(connection, checkpoint_id) or lost
            if lost is None:
                continue
            if number == _TRIES:
                raise lost
            time.sleep(0.3 * 2**number)
    finally:
        unfinished.unlink(missing_ok=True)
    raise KeyholeError(
        ErrorCode.UNAVAILABLE,
        f"{file.name} of checkpoint {checkpoint_id} arrived changed {changed} times; its stored bytes are sound.",
        "Something between here and the API changes what it sends; export it on the API's own machine.",
    )


def _lost_or_damaged(connection: Connection, checkpoint_id: int) -> Unreachable | None:
    """Ask why a body ended too soon or changed: damage raises, as it does not go away by asking again.

    Where nobody answers the question either, the connection is what is wrong, and is returned.
    """
    try:
        verify(connection, checkpoint_id)
    except Unreachable as error:
        return error
    return None


def _is_there(folder: Path, files: list[CheckpointFile]) -> bool:
    return folder.is_dir() and all(_is_whole(folder / file.name, file) for file in files)


def _is_whole(path: Path, file: CheckpointFile) -> bool:
    if not path.is_file() or path.stat().st_size != file.bytes:
        return False
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest() == file.sha256


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content
