"""Statements as text, with their values written in."""


def as_text(query: str, /, **values: object) -> str:
    """The statement with its values written in, as it can be pasted into ``keyhole sql`` or psql."""
    text = query.strip()
    for name, value in values.items():
        text = text.replace(f"%({name})s", _literal(value))
    return text + ";"


def _literal(value: object) -> str:
    if isinstance(value, list | tuple):
        return "ARRAY[" + ", ".join(_literal(item) for item in value) + "]"
    if isinstance(value, int):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"
