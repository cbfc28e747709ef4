"""What the parameters of every job kind have in common, whatever it does."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict


class Parameters(BaseModel):
    """Parameters of a job kind: unknown fields are refused, and so are values of another type, such as ``true`` for 1,
    and numbers that are not finite.

    Whole numbers are taken where fractions may stand. Values are never changed after validation.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class JobParameters(Parameters):
    """Parameters of a whole job, with what its submission asks of them."""

    @abstractmethod
    def shards(self) -> list[tuple[int, int]]:
        """(first, number) of each shard: of the sequences that a probe measures, of the steps that a training takes."""

    @abstractmethod
    def tokens_per_sequence(self) -> int:
        """The longest sequence that the model gets."""

    def other_models(self) -> list[str]:
        """Sources of the models that the job reads besides its first, in the order in which probes number them."""
        return []

    @classmethod
    def over_series(cls, sources: Sequence[str]) -> dict[str, Any] | None:
        """Parameters by which one job compares all models of a series; None for kinds that measure each model alone.

        ``sources`` are as submitted, so that a revision may tell the step. The first is the job's own model.
        """
        return None

    def require_fit(self, layers: int, heads: int) -> None:
        """Raise KeyholeError (invalid_request) where the parameters ask for what a model of this shape has not."""
