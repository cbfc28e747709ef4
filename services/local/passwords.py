"""Generated passwords, each in a file that only its owner can read."""

import os
import secrets
from pathlib import Path


def password(path: Path, prefix: str = "") -> str:
    """The password in ``path``; made of 256 random bits, and the file created with mode 0600, where there is none."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        text = prefix + secrets.token_urlsafe(32)
        write_private(path, text + "\n")
        return text


def write_private(path: Path, text: str) -> None:
    """Replace ``path`` atomically by a file that is 0600 from its first byte."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
