"""``stack.json`` in KEYHOLE_HOME: where the running embedded stack answers, and the processes that belong to it.

It holds passwords and the first API token, and is readable by its owner only.
"""

from pathlib import Path

from pydantic import BaseModel, ValidationError

from services.contracts.errors import ErrorCode, KeyholeError
from services.local.passwords import write_private
from services.local.processes import ChildProcess

NAME = "stack.json"


class ProcessRecord(BaseModel):
    pid: int
    started_at: float  # seconds since the epoch; tells a recycled pid apart

    def child(self) -> ChildProcess:
        return ChildProcess(self.pid, self.started_at)


class StackFile(BaseModel):
    """What the command line, the Python client and the next ``keyhole up`` need to find the stack."""

    api_url: str
    dashboard_url: str
    database_url: str  # as the owner role
    analyst_url: str  # as the read-only role
    broker_url: str
    token: str  # scope admin
    processes: dict[str, ProcessRecord] = {}  # service name to process; PostgreSQL keeps its own lock file


def read(home: Path) -> StackFile | None:
    """The stack that was started in ``home``, or None; whether it still runs is told by its processes."""
    path = home / NAME
    try:
        return StackFile.model_validate_json(path.read_text())
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise KeyholeError(
            ErrorCode.FORBIDDEN,
            f"{path} belongs to another user.",
            "Run as that user, or set KEYHOLE_API_URL and KEYHOLE_TOKEN.",
        ) from error
    except ValidationError as error:
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            f"{path} is not a stack file of this version: {error.error_count()} fields do not fit.",
            "Stop the stack with the version that started it, or end its processes and remove the file.",
        ) from error


def write(home: Path, stack: StackFile) -> None:
    write_private(home / NAME, stack.model_dump_json(indent=2) + "\n")


def remove(home: Path) -> None:
    (home / NAME).unlink(missing_ok=True)
