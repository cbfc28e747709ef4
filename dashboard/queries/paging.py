"""One page of a long list, newest first, found by the numbers of its lines: its cost does not grow with its depth."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Line = TypeVar("Line")


@dataclass(frozen=True)
class Page(Generic[Line]):
    """``older`` and ``newer`` say whether there are lines beyond it."""

    lines: list[Line]
    older: bool
    newer: bool


def upwards(before: int | None, after: int | None) -> bool:
    """Whether a page is read from its oldest line up: it begins above ``after``, and nothing says where it ends."""
    return before is None and after is not None


def page_of(found: Sequence[Line], limit: int, *, before: int | None, after: int | None) -> Page[Line]:
    """The page of at most ``limit`` lines, of which one more was asked for, in the order in which they were read."""
    more = len(found) > limit
    lines = list(found[:limit])
    if upwards(before, after):
        return Page(lines[::-1], older=True, newer=more)
    return Page(lines, older=more, newer=before is not None)
