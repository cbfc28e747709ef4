"""Listings of the API, fetched page by page."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeVar

from services.client.connection import Connection

_AT_ONCE = 200
Item = TypeVar("Item")


class Page(Protocol[Item]):
    items: list[Item]
    next: str | None

    @classmethod
    def model_validate_json(cls, json_data: bytes) -> "Page[Item]": ...


def items(
    connection: Connection, path: str, page: type[Page[Item]], filters: Mapping[str, Any], limit: int | None
) -> Iterator[Item]:
    """What matches the filters that are not None, at most ``limit``."""
    parameters = {name: value for name, value in filters.items() if value is not None}
    left = limit
    while left is None or left > 0:
        size = _AT_ONCE if left is None else min(left, _AT_ONCE)
        answer = connection.request("GET", path, params={**parameters, "limit": size})
        found = page.model_validate_json(answer.content)
        yield from found.items
        if found.next is None:
            return
        parameters["cursor"] = found.next
        left = None if left is None else left - len(found.items)
