"""The ranks of a run besides the first: they assemble the same trainer and take the same steps, and tell nobody.

The first rank alone deals with the database. It tells the others what the run is, where on this machine its
checkpoint lies, and then to begin, or up to which step to go on.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from services.contracts.settings import Settings
from services.contracts.training.numbers import Matrix, Metric
from services.contracts.training.training import TrainingParameters
from workers.training import assembly
from workers.training.assembly import Order
from workers.training.divergence import DivergedError
from workers.training.ranks import Ranks
from workers.training.training import DueCheckpoint


class Others:
    """The other ranks, as the first speaks to them; with one process nobody hears."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def assemble(self, order: Order, checkpoint: Path | None) -> None:
        told = asdict(order) | {"parameters": order.parameters.model_dump(mode="json")}
        folder = None if order.model_folder is None else str(order.model_folder)
        self.ranks.told({"order": told | {"model_folder": folder}, "checkpoint": checkpoint and str(checkpoint)})

    def begin(self) -> None:
        self.ranks.told({"do": "begin"})

    def advance(self, stop: int) -> None:
        self.ranks.told({"do": "advance", "stop": stop})

    def end(self) -> None:
        self.ranks.told({"do": "end"})


def follow(ranks: Ranks, device: str, settings: Settings) -> None:
    """Do what the first rank says until it has no more to do."""
    told = ranks.told()
    order = Order(
        **told["order"]
        | {
            "parameters": TrainingParameters.model_validate(told["order"]["parameters"]),
            "model_folder": told["order"]["model_folder"] and Path(told["order"]["model_folder"]),
        }
    )
    checkpoint = told["checkpoint"] and Path(told["checkpoint"])
    trainer = assembly.assembled(order, checkpoint, device, settings, ranks=ranks).trainer
    ranks.wait()
    sink = Silent()
    while (told := ranks.told())["do"] != "end":
        try:
            if told["do"] == "begin":
                trainer.begin(sink)
            else:
                trainer.advance(told["stop"], sink)
        except DivergedError:  # the first rank met it in the same step, and ends the run
            return


class Silent:
    """A sink; what the first rank tells is of all of them."""

    def measured(self, metrics: Sequence[Metric], matrices: Sequence[Matrix]) -> None: ...

    def took(self, step: int) -> None: ...

    def checkpoint(self, checkpoint: DueCheckpoint) -> None: ...
