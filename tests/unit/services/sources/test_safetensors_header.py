"""A safetensors file is taken exactly if the reference library takes it, and refused with a reason otherwise."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from safetensors import SafetensorError

from services.contracts.errors import ErrorCode, KeyholeError
from services.sources.safetensors_header import read_header
from tests.unit.services.sources.model_files import safetensors_bytes, with_header


def test_the_header_lists_what_the_library_wrote(tmp_path: Path) -> None:
    arrays = {"x": np.zeros((2, 3), np.float16), "y": np.ones(5, np.int64), "scalar": np.array(1.0)}
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(arrays, path, metadata={"format": "pt"})
    read = read_header(path)
    assert {name: entry.shape for name, entry in read.items()} == {n: a.shape for n, a in arrays.items()}
    assert read["x"].dtype == "F16"


def _entry(start: int, stop: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


GOOD = safetensors_bytes({"a": [2, 3], "b": [4]})
UNSOUND = {
    "empty file": b"",
    "cut short": GOOD[:-1],
    "bytes behind the last tensor": GOOD + b"\0",
    "header longer than the file": (1 << 40).to_bytes(8, "little") + b"{}",
    "header is not JSON": with_header(b"{nonsense", 0),
    "header is a list": with_header([], 0),
    "deeply nested header": with_header(b"[" * 100_000, 0),
    "overlap": safetensors_bytes({"a": [4]}, b=_entry(8, 24, [4])),
    "gap": with_header({"a": _entry(0, 4, [1]), "b": _entry(8, 12, [1])}, 12),
    "beyond the end": with_header({"a": _entry(0, 400, [100])}, 4),
    "shape does not fit the bytes": with_header({"a": _entry(0, 8, [1])}, 8),
    "negative size": with_header({"a": _entry(0, 4, [-1])}, 4),
    "size is true": with_header({"a": _entry(0, 4, [True])}, 4),  # type: ignore[list-item]  # the point of the case
    "unknown dtype": with_header({"a": _entry(0, 4, [1], "PICKLE")}, 4),
    "missing offsets": with_header({"a": {"dtype": "F32", "shape": [1]}}, 4),
    "metadata of numbers": with_header({"__metadata__": {"x": 1}, "a": _entry(0, 4, [1])}, 4),
}


@pytest.mark.parametrize("data", UNSOUND.values(), ids=UNSOUND.keys())
def test_an_unsound_file_is_refused_here_and_by_the_library(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(KeyholeError) as refused:
        read_header(path)
    assert refused.value.code == ErrorCode.MODEL_REFUSED
    with pytest.raises((SafetensorError, OSError, ValueError)):
        safetensors.numpy.load_file(path)


def test_a_tensor_that_stands_twice_is_refused_though_the_library_takes_one_of_them(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    entry = b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    path.write_bytes(with_header(b"{" + entry + b"," + entry + b"}", 4))
    with pytest.raises(KeyholeError, match="'a' stands twice"):
        read_header(path)


def test_a_file_without_tensors_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(with_header({}, 0))
    with pytest.raises(KeyholeError, match="holds no tensor"):
        read_header(path)
