"""Which devices a worker offers. A child gets one of them in its environment before it imports torch.

A device is the CPU, a GPU, or several GPUs that a job of several processes has together: ``cuda:0+1``.
"""

import os
import subprocess

from services.contracts.errors import ErrorCode, KeyholeError


def offered(setting: str) -> list[str]:
    """Devices named by KEYHOLE_DEVICES, each the place of one job.

    ``auto`` (every GPU, else the CPU), ``cpu``, or GPU indices: ``0,1`` are two devices, ``0+1`` is one of two GPUs.
    """
    if setting == "cpu":
        return ["cpu"]
    if setting == "auto":
        return [f"cuda:{index}" for index in range(len(_gpus("name")))] or ["cpu"]
    try:
        groups = [[int(index) for index in group.split("+")] for group in setting.split(",")]
        indices = [index for group in groups for index in group]
        if min(indices) < 0 or len(set(indices)) < len(indices):
            raise ValueError
        return ["cuda:" + "+".join(map(str, group)) for group in groups]
    except ValueError:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"KEYHOLE_DEVICES is {setting!r}.",
            "Use auto, cpu, or GPU indices, each once, separated by commas; 0+1 gives a job two GPUs.",
        ) from None


def child_environment(device: str) -> dict[str, str]:
    """The environment of a child on this device: it sees its GPUs as cuda:0 and so on, or none."""
    return os.environ | {"CUDA_VISIBLE_DEVICES": device.partition(":")[2].replace("+", ",")}


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
