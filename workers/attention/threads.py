"""Work on many small matrices over all cores: torch gives LAPACK one matrix after the other, on one core."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def over_cores(work: Callable[[Item], Result], items: Sequence[Item], device: torch.device) -> list[Result]:
    """``work`` done on every item, in order; on a CPU by as many threads as torch would use, each with one core.

    Autograd's modes are a thread's own: ``work`` has to switch gradients off itself where that matters.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or min(threads, len(items)) <= 1:
        return [work(item) for item in items]
    try:
        with ThreadPoolExecutor(min(threads, len(items)), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(work, items))
    finally:
        torch.set_num_threads(threads)  # this thread kept its number; those started from now on take the one set last
