"""Statements as text, with their values written in; and values as rows can have them."""

from typing import overload


def as_text(query: str, /, **values: object) -> str:
    """The statement with its values written in, as it can be pasted into ``keyhole sql`` or psql."""
    text = query.strip()
    for name, value in values.items():
        text = text.replace(f"%({name})s", _literal(value))
    return text + ";"


@overload
def storable(text: str) -> str: ...
@overload
def storable(text: None) -> None: ...
def storable(text: str | None) -> str | None:
    """The text as it could stand in the database: an address may have NUL characters (``%00``), which no row has."""
    return text.replace("\0", "") if text else text


def _literal(value: object) -> str:
    if isinstance(value, list | tuple):
        return "ARRAY[" + ", ".join(_literal(item) for item in value) + "]"
    if isinstance(value, int):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"
