"""Times of several ways to do the same, taken in turn: each round goes through all of them, every other one backwards.

So a machine that is slow for a while is slow for all. A work is a function of the number of its round; round 0 warms
up and does not count. Wall seconds say what a user waits, CPU seconds what the process computed, on all its threads:
on a machine that others use, compare those.
"""

import argparse
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from multiprocessing.connection import Connection
from typing import NamedTuple, Self

import torch

from workers.models import LoadedModel
from workers.models.loaded import Architecture

Work = Callable[[int], object]
Prepare = Callable[[str, argparse.Namespace], AbstractContextManager[tuple[LoadedModel, Work]]]


class Times(NamedTuple):
    """Seconds on both clocks, or ratios of them."""

    wall: float
    cpu: float

    def over(self, other: Self) -> "Times":
        return Times(self.wall / other.wall, self.cpu / other.cpu)

    def __str__(self) -> str:
        return f"{self.wall:8.2f} s wall {self.cpu:8.2f} s CPU"


class Processes(NamedTuple):
    """What ``in_processes`` found out, by mode."""

    times: dict[str, Times]
    peak_mib: dict[str, float]  # of the GPU's memory where the model is on one, else resident
    architecture: Architecture


def timed(work: Callable[[], object], device: torch.device) -> Times:
    """One call of ``work``, until a GPU is done with it."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return Times(time.perf_counter() - wall, time.process_time() - cpu)


def in_turn(works: Mapping[str, Work], rounds: int, device: torch.device) -> dict[str, Times]:
    """Medians of the rounds, in this process."""
    return _medians(works, rounds, lambda mode, round_: timed(partial(works[mode], round_), device))


def in_processes(prepare: Prepare, modes: Iterable[str], options: argparse.Namespace) -> Processes:
    """Medians of the rounds, each mode in a process of its own, whose memory is its own too.

    There ``prepare(mode, options)``, a function of a module, gives the loaded model and the work; then the process
    waits for its turns. All models are loaded before the first round.
    """
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    processes, architectures = [], []
    for mode in modes:
        pipes[mode], theirs = context.Pipe()
        processes.append(context.Process(target=_serve, args=(prepare, mode, options, theirs)))
        processes[-1].start()
        theirs.close()  # so that a child that dies ends the wait
        architectures.append(pipes[mode].recv())

    def turn(mode: str, round_: int) -> Times:
        pipes[mode].send(round_)
        return pipes[mode].recv()

    times = _medians(pipes, options.rounds, turn)
    peaks = {}
    for mode, pipe in pipes.items():
        pipe.send(None)
        peaks[mode] = pipe.recv() / 2**20
    for process in processes:
        process.join()
    return Processes(times, peaks, architectures[0])


def _medians(modes: Iterable[str], rounds: int, turn: Callable[[str, int], Times]) -> dict[str, Times]:
    taken: dict[str, list[Times]] = {mode: [] for mode in modes}
    for round_ in range(rounds + 1):
        for mode in list(taken)[:: 1 if round_ % 2 else -1]:
            times = turn(mode, round_)
            if round_:
                taken[mode].append(times)
    return {mode: Times(*map(statistics.median, zip(*times, strict=True))) for mode, times in taken.items()}


def _serve(prepare: Prepare, mode: str, options: argparse.Namespace, pipe: Connection) -> None:
    with prepare(mode, options) as (loaded, work):
        device = loaded.model.device
        pipe.send(loaded.architecture)
        while (round_ := pipe.recv()) is not None:
            pipe.send(timed(partial(work, round_), device))
        # kilobytes on Linux, bytes on macOS
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        pipe.send(torch.cuda.max_memory_allocated() if device.type == "cuda" else resident)
