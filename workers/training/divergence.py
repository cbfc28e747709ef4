"""When a run is given up.

A loss or gradient that is not finite ends a run at once, before the update that would carry it into the weights is
stored anywhere. So does a loss that stays far above what the run had reached: with m_k the exponential mean of the
losses (memory ``MEMORY`` steps), m_k > min m + ``NATS`` for ``STEPS`` steps on end. Spikes that a run recovers from are
shorter: they last tens of steps. The limits are chosen, not fitted: 1.5 nats are 4.5 times the best perplexity.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Self

MEMORY = 20
NATS = 1.5
STEPS = 200


class DivergedError(Exception):
    """A run that is not worth going on with; what was sound is what it was at ``sound_step``, or before."""

    def __init__(self, step: int, what: str, sound_step: int) -> None:
        super().__init__(f"step {step}: {what}")
        self.step, self.what, self.sound_step = step, what, sound_step


@dataclass
class Watch:
    """Follows the losses of a run; part of the state that it is resumed from."""

    mean: float | None = None
    best: float = math.inf
    above_since: int | None = None  # first step of those on end whose mean is far above the best

    def see(self, step: int, loss_nats: float, gradient_norm: float) -> None:
        """Take the numbers of a step; raises DivergedError."""
        for name, value in (("loss", loss_nats), ("gradient norm", gradient_norm)):
            if not math.isfinite(value):
                raise DivergedError(step, f"the {name} is {value}", step - 1)
        self.mean = loss_nats if self.mean is None else self.mean + (loss_nats - self.mean) / MEMORY
        self.best = min(self.best, self.mean)
        if self.mean <= self.best + NATS:
            self.above_since = None
            return
        if self.above_since is None:
            self.above_since = step
        if step - self.above_since + 1 >= STEPS:
            raise DivergedError(
                step,
                f"the loss, {self.mean:.3f} nats in the mean over {MEMORY} steps, has been more than {NATS} above its "
                f"best, {self.best:.3f}, since step {self.above_since}",
                self.above_since - 1,
            )

    def stored(self) -> dict[str, Any]:
        return {key: None if value == math.inf else value for key, value in asdict(self).items()}

    @classmethod
    def restored(cls, values: dict[str, Any]) -> Self:
        return cls(values["mean"], math.inf if values["best"] is None else values["best"], values["above_since"])
