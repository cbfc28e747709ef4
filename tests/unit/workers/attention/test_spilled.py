"""Tensors come back as they were written, and leave nothing behind."""

import tempfile
from pathlib import Path

import psutil
import pytest
import torch

from workers.attention.spilled import TensorFile


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.bool])
def test_a_tensor_of_any_dtype_comes_back_as_it_was(dtype: torch.dtype) -> None:
    with TensorFile() as file:
        odd = file.append(torch.ones(3, dtype=torch.bool))
        tensor = torch.randn(4, 5, 6).to(dtype)
        place = file.append(tensor.transpose(0, 2))
        assert torch.equal(file.read(place), tensor.transpose(0, 2))
        assert file.read(odd).all()


def test_a_file_has_no_name_and_is_closed_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = psutil.Process().num_fds()
    with pytest.raises(ZeroDivisionError), TensorFile() as file:
        file.read(file.append(torch.ones(1000)))
        assert list(tmp_path.iterdir()) == []  # a process that is killed leaves nothing
        raise ZeroDivisionError
    assert psutil.Process().num_fds() == before
