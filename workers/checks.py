"""How the self-checks of shards become those of a job."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any


def combined(per_shard: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Checks of the whole job: the largest of what starts with max_, the mean of other numbers, else the last."""
    gathered: defaultdict[str, list[Any]] = defaultdict(list)
    for one in per_shard:
        for name, value in one.items():
            gathered[name].append(value)
    found: dict[str, Any] = {}
    for name, values in gathered.items():
        if name.startswith("max_"):
            found[name] = max(values)
        elif all(isinstance(value, int | float) for value in values):
            found[name] = sum(values) / len(values)
        else:
            found[name] = values[-1]
    return found
