"""Tables over HTTP as Arrow streams, read batch by batch."""

import io
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import httpx

from services.client_connection import Connection

if TYPE_CHECKING:
    import pyarrow


def opened(
    connection: Connection,
    job_id: int,
    table: str,
    *,
    columns: Sequence[str] | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> AbstractContextManager[httpx.Response]:
    """The open answer that streams a job's rows of one table."""
    parameters: dict[str, Any] = {"format": "arrow"}
    wanted = {"column": list(columns) if columns else None, "layer": layer, "head": head}
    parameters |= {name: value for name, value in wanted.items() if value is not None}
    return connection.stream("GET", f"/v1/jobs/{job_id}/tables/{table}", params=parameters)


def reader(response: httpx.Response) -> "pyarrow.ipc.RecordBatchStreamReader":
    """Arrow record batches as they arrive."""
    import pyarrow as pa

    return pa.ipc.open_stream(pa.PythonFile(io.BufferedReader(_Body(response.iter_bytes())), mode="r"))


def read_all(response: httpx.Response) -> "pyarrow.Table":
    return reader(response).read_all()


class _Body(io.RawIOBase):
    """The pieces of a response as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
