"""The models of a job besides its first: a teacher, other checkpoints."""

from collections.abc import Callable, Sequence

from workers.models.loaded import LoadedModel


class OtherModels:
    """Loads the other models of a job by their number, in the order of ``parameters.other_models()``."""

    def __init__(self, loaders: Sequence[Callable[[], LoadedModel]] = ()) -> None:
        self._loaders = loaders
        self._kept: dict[int, LoadedModel] = {}

    def __len__(self) -> int:
        return len(self._loaders)

    def load(self, number: int) -> LoadedModel:
        """Load a model that the caller lets go of when it is done: many may not fit in memory together."""
        return self._kept.get(number) or self._loaders[number]()

    def keep(self, number: int) -> LoadedModel:
        """The same, but it stays loaded for the shards to come."""
        if number not in self._kept:
            self._kept[number] = self._loaders[number]()
        return self._kept[number]
