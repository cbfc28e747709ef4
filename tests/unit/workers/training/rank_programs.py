"""What ranks run in tests: functions of a module, so that a new process finds them."""

import json
import os
import signal
from pathlib import Path

import torch
from safetensors.torch import save_file

from services.contracts.errors import ErrorCode, KeyholeError
from workers.launching import OverError
from workers.training.ranks import Ranks


def train(ranks: Ranks, folder: str, changed: str) -> None:
    """A small run; the first rank leaves its curve, every rank its weights."""
    from tests.unit.workers.training import small_runs  # only here: it takes seconds

    made, told = small_runs.trainer(small_runs.parameters(**json.loads(changed)), ranks=ranks), small_runs.Told()
    made.begin(told)
    made.advance(made.parameters.steps, told)
    save_file(
        {name: tensor.clone() for name, tensor in made.model.state_dict().items()},
        Path(folder) / f"weights-{ranks.rank}.safetensors",
    )
    if ranks.first:
        curves = {name: told.curve(name) for name in ("loss_nats", "validation_loss_nats", "gradient_norm")}
        (Path(folder) / "curves.json").write_text(json.dumps(curves))


def talk(ranks: Ranks, folder: str) -> None:
    """Leave what came of sums and of what the first rank said."""
    single, double = torch.arange(4.0) * (ranks.rank + 1), torch.full((2, 2), 0.5, dtype=torch.float64)
    ranks.sum_([single, double])
    ranks.wait()
    heard = [ranks.told({"a": [1, None, "ü"]} if ranks.first else "not listened to"), ranks.told(), ranks.told(7)]
    found = {"single": single.tolist(), "double": double.tolist(), "heard": heard, "threads": torch.get_num_threads()}
    (Path(folder) / f"talk-{ranks.rank}.json").write_text(json.dumps(found))


def fail(ranks: Ranks, rank: str) -> None:
    if ranks.rank == int(rank):
        raise KeyholeError(ErrorCode.OUT_OF_MEMORY, "this rank has no memory left", "Lower batch.")
    ranks.wait()


def be_done_with_the_others(ranks: Ranks) -> None:
    if ranks.first:
        raise OverError
    ranks.wait()


def be_killed(ranks: Ranks) -> None:
    if not ranks.first:
        os.kill(os.getpid(), signal.SIGKILL)
    ranks.wait()


def outlive_the_parent(ranks: Ranks, folder: str) -> None:
    (Path(folder) / f"pid-{ranks.rank}").write_text(str(os.getpid()))
    ranks.wait()
    if ranks.first:
        os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()
