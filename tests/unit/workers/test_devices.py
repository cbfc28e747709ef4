"""Devices a worker offers, and what its children see of them."""

import os
import re
import stat
from pathlib import Path

import pytest

from services.contracts.errors import KeyholeError
from workers import devices


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose nvidia-smi lists two GPUs with 100 and 200 MiB in use."""
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\ncase "$1" in *name*) printf "H100\\nH100\\n";; *) printf "100\\n200\\n";; esac\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


def test_auto_offers_every_gpu(two_gpus: None) -> None:
    assert devices.offered("auto") == ["cuda:0", "cuda:1"]
    assert devices.gpu_memory_bytes() == 300 * 1024**2


def test_auto_offers_the_cpu_where_nvidia_smi_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert devices.offered("auto") == ["cpu"]
    assert devices.gpu_memory_bytes() is None


def test_indices_are_taken_as_given() -> None:
    assert devices.offered("1,3") == ["cuda:1", "cuda:3"]


def test_gpus_joined_by_a_plus_are_the_place_of_one_job() -> None:
    assert devices.offered("0+1,2") == ["cuda:0+1", "cuda:2"]


@pytest.mark.parametrize("setting", ["fast", "0,0", "0+1,1", "-1", "0+", ""])
def test_nonsense_is_refused_with_the_value(setting: str) -> None:
    with pytest.raises(KeyholeError, match=f"'{re.escape(setting)}'"):
        devices.offered(setting)


@pytest.mark.parametrize(
    ("device", "visible", "name"), [("cuda:1", "1", "cuda"), ("cuda:0+3", "0,3", "cuda"), ("cpu", "", "cpu")]
)
def test_a_child_sees_its_own_device_only(device: str, visible: str, name: str) -> None:
    assert devices.child_environment(device)["CUDA_VISIBLE_DEVICES"] == visible
    assert devices.torch_name(device) == name
