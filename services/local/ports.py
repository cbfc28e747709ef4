"""Ports on this machine: the usual one where it is free, another where nobody asked for a certain one."""

import socket

from services.contracts.errors import ErrorCode, KeyholeError


def is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT is no obstacle
        try:
            trial.bind((host, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.bind(("127.0.0.1", 0))
        return trial.getsockname()[1]


def choose(host: str, port: int, *, explicit: bool, setting: str) -> int:
    """``port``, or another free one unless the user set it; then KeyholeError says that it is taken."""
    if is_free(host, port):
        return port
    if explicit:
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            f"Port {port} on {host} is in use by another program.",
            f"End that program, or set {setting} to another port.",
        )
    return free_port()
