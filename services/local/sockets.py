"""Private folders for Unix sockets, whose paths the operating system limits to about a hundred bytes."""

import hashlib
import os
import sys
import tempfile
from pathlib import Path

from services.contracts.errors import ErrorCode, KeyholeError

PATH_LIMIT = 103 if sys.platform == "darwin" else 107  # sun_path less its final zero byte


def socket_folder(preferred: Path, socket_name: str, uid: int) -> Path:
    """``preferred`` where the socket's path fits, else a short folder below /tmp; created, 0700, owned by ``uid``.

    Raises KeyholeError when somebody else holds the short folder.
    """
    if len(os.fsencode(preferred / socket_name)) <= PATH_LIMIT:
        preferred.mkdir(parents=True, exist_ok=True)
        return _private(preferred, uid)
    digest = hashlib.sha256(os.fsencode(preferred)).hexdigest()[:12]
    for base in (Path(tempfile.gettempdir()), Path("/tmp")):  # noqa: S108  # the folder is 0700 and its owner checked
        short = base / f"keyhole-{uid}-{digest}"
        if len(os.fsencode(short / socket_name)) <= PATH_LIMIT:
            short.mkdir(mode=0o700, exist_ok=True)
            return _private(short, uid)
    raise KeyholeError(
        ErrorCode.UNAVAILABLE,
        f"No folder is short enough for a Unix socket: {preferred} is too long, and so is {tempfile.gettempdir()}.",
        "Set KEYHOLE_HOME to a shorter path.",
    )


def _private(folder: Path, uid: int) -> Path:
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid not in (uid, os.geteuid()):
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            f"The socket folder {folder} belongs to user {status.st_uid}, or is a link.",
            "Remove it, or set KEYHOLE_HOME to another folder.",
        )
    if status.st_uid != uid:
        os.chown(folder, uid, -1)
    folder.chmod(0o700)
    return folder
