"""Which devices a worker offers. A child gets one of them in its environment before it imports torch."""

import os
import subprocess

from services.contracts.errors import ErrorCode, KeyholeError


def offered(setting: str) -> list[str]:
    """Devices named by KEYHOLE_DEVICES: ``auto`` (every GPU, else the CPU), ``cpu``, or GPU indices like ``0,1``."""
    if setting == "cpu":
        return ["cpu"]
    if setting == "auto":
        return [f"cuda:{index}" for index in range(len(_gpus("name")))] or ["cpu"]
    try:
        return [f"cuda:{int(index)}" for index in setting.split(",")]
    except ValueError:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"KEYHOLE_DEVICES is {setting!r}.",
            "Use auto, cpu, or GPU indices separated by commas.",
        ) from None


def child_environment(device: str) -> dict[str, str]:
    """The environment of a child on this device: it sees that GPU as cuda:0, or none."""
    return os.environ | {"CUDA_VISIBLE_DEVICES": device.partition(":")[2]}


def torch_name(device: str) -> str:
    """What the child calls its device."""
    return "cpu" if device == "cpu" else "cuda"


def gpu_memory_bytes() -> int | None:
    """Memory in use on all GPUs of this host; None where there are none."""
    used = _gpus("memory.used")
    return sum(int(line) * 1024**2 for line in used if line.isdigit()) if used else None


def _gpus(query: str) -> list[str]:
    """One line per GPU from nvidia-smi, which needs no CUDA context; empty where it is missing or fails."""
    try:
        answer = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]
