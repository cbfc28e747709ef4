"""Tables over HTTP, read piece by piece: as bytes, or as Arrow record batches."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx

from services.client.connection import Connection

if TYPE_CHECKING:
    import pyarrow

TRUNCATED_HEADER = "X-Keyhole-Truncated"


class Body(io.RawIOBase):
    """The body of an open response as a file."""

    def __init__(self, response: httpx.Response) -> None:
        self.truncated = response.headers.get(TRUNCATED_HEADER) == "true"  # a row limit cut the answer
        self._pieces = response.iter_bytes()
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


@contextmanager
def opened(
    connection: Connection,
    job_id: int,
    table: str,
    *,
    columns: Sequence[str] | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> Iterator[Body]:
    """A job's rows of one table, as the Arrow stream that the API sends."""
    wanted = {"column": list(columns) if columns else None, "layer": layer, "head": head}
    parameters: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    path = f"/v1/jobs/{job_id}/tables/{table}"
    with connection.stream("GET", path, params={"format": "arrow", **parameters}) as response:
        yield Body(response)


def reader(body: Body) -> "pyarrow.ipc.RecordBatchStreamReader":
    """Arrow record batches as they arrive."""
    import pyarrow as pa

    return pa.ipc.open_stream(pa.PythonFile(io.BufferedReader(body, 1 << 20), mode="r"))


def read_all(body: Body) -> "pyarrow.Table":
    return reader(body).read_all()
