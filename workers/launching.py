"""Several processes for one run: started by torch's elastic agent, as torchrun does it, with the child as the agent.

They find each other at a free port of 127.0.0.1. All belong to the process group of the child and die with it; a rank
whose child is gone leaves by itself. What a rank fails of reaches the child, and so the row of the job. A rank that is
killed takes the child with it, and the job is attempted again like after any crash.
"""

import datetime
import importlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from services.contracts.errors import ErrorCode, KeyholeError
from workers.failure import Failure
from workers.training.ranks import PeerLostError, Ranks

# The first rank may store a checkpoint or make a tokenizer and tokens while the others wait for what it says next; a
# job's own time limit is for those that hang.
_PATIENCE = datetime.timedelta(days=1)
_PARENT_S = 0.5
_GPUS = "CUDA_VISIBLE_DEVICES"


class OverError(Exception):
    """The first rank needs the others no more, wherever they are."""


class RankTracebackError(Exception):
    """The traceback of a rank, as text: the cause of the error that its child raises."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def launch(processes: int, device: str, function: Callable[..., None], *arguments: str) -> None:
    """Run ``function(ranks, *arguments)``, a function of a module, in so many processes, until all have returned.

    Each has one GPU of this process's, or the CPU with its part of the threads. Raises the KeyholeError of a rank. Ends
    this process by the same signal if a rank was killed.
    """
    _require_devices(processes, device)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)}
    with tempfile.TemporaryDirectory(prefix="keyhole-ranks-") as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",  # a free port
            rdzv_configs={"is_host": True},
            local_addr="127.0.0.1",
            max_restarts=0,  # the life cycle of jobs attempts again
            start_method="spawn",
            logs_specs=DefaultLogsSpecs(log_dir=str(Path(folder) / "logs")),
            shutdown_timeout=5,
        )
        target = f"{function.__module__}:{function.__qualname__}"
        threads = max(1, torch.get_num_threads() // processes)
        try:
            elastic_launch(config, _enter)(target, device, threads, os.getpid(), folder, *arguments)
        except ChildFailedError as error:
            _raise_first_error(Path(folder), error)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _require_devices(processes: int, device: str) -> None:
    there = len(os.environ.get(_GPUS, "").split(",")) if device == "cuda" else processes
    if there < processes:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"processes is {processes}, one GPU each, and this worker gives a job {there}.",
            "Start it with KEYHOLE_DEVICES=0+1 for two GPUs in one slot, and so on, or set processes to 1.",
        )


def _enter(target: str, device: str, threads: int, parent: int, folder: str, *arguments: str) -> None:
    """What each rank runs."""
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        if device == "cuda":
            os.environ[_GPUS] = os.environ[_GPUS].split(",")[int(os.environ["LOCAL_RANK"])]
        else:
            torch.set_num_threads(threads)
        dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", timeout=_PATIENCE)
        module, _, name = target.partition(":")
        getattr(importlib.import_module(module), name)(Ranks(rank, world), *arguments)
        dist.destroy_process_group()
    except Exception as error:
        if not isinstance(error, PeerLostError):
            told = asdict(Failure.of(error)) | {"over": isinstance(error, OverError), "rank": rank}
            _write(Path(folder) / f"error-{rank}.json", json.dumps(told))
        print(f"rank {rank} ends: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # without waiting for threads that wait for others


def _raise_first_error(folder: Path, error: ChildFailedError) -> None:
    """Raise what a rank failed of; return if the first rank was done with the others; else die like the rank did."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("error-*.json"))]
    if any(told["over"] for told in found):
        return
    if found:
        told = found[0]
        raise KeyholeError(ErrorCode(told["code"]), told["message"], told["hint"]) from RankTracebackError(
            f"rank {told['rank']}:\n{told['traceback']}"
        )
    rank, failure = error.get_first_failure()
    status = failure.exitcode
    print(f"a rank was lost; rank {rank} ended first, with status {status}", file=sys.stderr, flush=True)
    os.kill(os.getpid(), -status if status < 0 else signal.SIGKILL)
    time.sleep(60)  # until the signal arrives


def _leave_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_S)
    os._exit(1)


def _write(path: Path, text: str) -> None:
    """Whole or not at all: the others may be ended at any moment."""
    making = path.with_suffix(".making")
    making.write_text(text)
    making.replace(path)
