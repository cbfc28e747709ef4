"""The user that embedded services run as: ourselves, or an unprivileged user when we are root (PostgreSQL insists)."""

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.contracts.errors import ErrorCode, KeyholeError

ELSEWHERE = "Choose another folder with KEYHOLE_HOME, for example /var/lib/keyhole, or run Keyhole as an ordinary user."


@dataclass(frozen=True)
class Account:
    """A user to start processes as. ``switch`` is false when that is the user we already are."""

    name: str
    uid: int
    gid: int
    switch: bool

    def process_arguments(self) -> dict[str, Any]:
        """Arguments for subprocess that start a process as this user, with none of root's groups."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.switch else {}

    def own(self, path: Path, mode: int) -> None:
        if self.switch:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)
        path.chmod(mode)

    def can_enter(self, folder: Path) -> bool:
        """Tried as that user, so that access lists and mounts count too."""
        command = ["/bin/sh", "-c", 'cd "$1" 2>/dev/null', "sh", str(folder)]
        return subprocess.run(command, cwd="/", check=False, **self.process_arguments()).returncode == 0

    def can_run(self, program: Path) -> bool:
        command = [str(program), "--version"]
        try:
            return (
                subprocess.run(
                    command, cwd="/", check=False, capture_output=True, **self.process_arguments()
                ).returncode
                == 0
            )
        except PermissionError:
            return False

    def refuse_closed_parents(self, folder: Path) -> None:
        """Raises KeyholeError that names the first folder on the way which this user cannot enter."""
        for parent in [*reversed(folder.parents), folder]:
            if not self.can_enter(parent):
                raise KeyholeError(
                    ErrorCode.UNAVAILABLE,
                    f"PostgreSQL runs as the user {self.name!r}, who cannot enter {parent}.",
                    f"{ELSEWHERE} Or open that folder for passing through: chmod o+x {parent}",
                )


def postgres_account(data: Path) -> Account:
    """The owner of an existing data folder; else ourselves; for root KEYHOLE_POSTGRES_USER, postgres or nobody."""
    if data.exists():
        return _owner_of(data)
    if os.geteuid() != 0:
        return _ourselves()
    chosen = os.environ.get("KEYHOLE_POSTGRES_USER")
    for name in [chosen] if chosen else ["postgres", "nobody"]:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return _tried(Account(name, entry.pw_uid, entry.pw_gid, switch=True))
    raise KeyholeError(
        ErrorCode.UNAVAILABLE,
        f"PostgreSQL does not run as root, and there is no user {chosen or 'postgres or nobody'!r} to run it as.",
        "Set KEYHOLE_POSTGRES_USER to an unprivileged user, or run Keyhole as an ordinary user.",
    )


def _ourselves() -> Account:
    uid = os.geteuid()
    return Account(_user_name(uid), uid, os.getegid(), switch=False)


def _owner_of(data: Path) -> Account:
    status = data.stat()
    if status.st_uid == os.geteuid() != 0:
        return _ourselves()
    name = _user_name(status.st_uid)
    if os.geteuid() != 0:
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            f"The database in {data} belongs to the user {name!r}.",
            "Run Keyhole as root or as that user, or set KEYHOLE_HOME to a folder of your own.",
        )
    if status.st_uid == 0:
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            f"The database folder {data} belongs to root, and PostgreSQL does not run as root.",
            f"Give it to an unprivileged user: chown -R postgres {data}",
        )
    return _tried(Account(name, status.st_uid, status.st_gid, switch=True))


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # containers run under numbers without a name
        return str(uid)


def _tried(account: Account) -> Account:
    """Root of a restricted container may lack the right to become another user."""
    try:
        subprocess.run(["/bin/sh", "-c", ":"], cwd="/", check=True, **account.process_arguments())
    except OSError as error:
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            f"PostgreSQL does not run as root, and this root may not become the user {account.name!r} ({error}).",
            "Run Keyhole as an ordinary user.",
        ) from error
    return account
