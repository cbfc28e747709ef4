"""What commands print: JSON, or text made for reading. Colours only on a terminal, and not under NO_COLOR.

Texts come from data sets, labels and errors, so what would command the terminal is printed spelled out (``\\x1b``).
"""

import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from services.contracts.printable import visible, visible_json
from services.contracts.states import JobState

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

_COLOURS = {
    "succeeded": typer.colors.GREEN,
    "failed": typer.colors.RED,
    "cancelled": typer.colors.YELLOW,
    "cancelling": typer.colors.YELLOW,
    "running": typer.colors.CYAN,
}


def data(text: str = "") -> None:
    print(visible(text, keep="\n\t"))


def message(text: str) -> None:
    """Something about the data, not the data."""
    print(visible(text, keep="\n\t"), file=sys.stderr)


def as_json(value: BaseModel | Iterable[BaseModel] | Mapping[str, Any]) -> None:
    if isinstance(value, BaseModel):
        plain: Any = value.model_dump(mode="json")
    elif isinstance(value, Mapping):
        plain = value
    else:
        plain = [item.model_dump(mode="json") for item in value]
    print(visible_json(json.dumps(plain, indent=2, ensure_ascii=False)))


def json_line(value: BaseModel) -> None:
    print(visible_json(value.model_dump_json()), flush=True)  # whoever follows through a pipe gets it now


def rows_as_text(body: io.RawIOBase, *, json: bool) -> None:
    """Rows that are JSON or CSV already, for a terminal; pipes and files get them byte by byte."""
    for line in io.TextIOWrapper(io.BufferedReader(body), "utf-8", newline="\n"):
        print(visible_json(line) if json else visible(line, keep="\n\t\r"), end="")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, widest: int | None = None) -> None:
    """Aligned columns; numbers to the right; cells wider than ``widest`` end in an ellipsis."""
    texts = [[_cut(_text(cell), widest) for cell in row] for row in rows]
    numeric = [bool(texts) and all(_is_number(row[at]) or row[at] == "" for row in texts) for at in range(len(columns))]
    names = [_text(name.upper()) for name in columns]
    widths = [max([len(name), *(len(row[at]) for row in texts)]) for at, name in enumerate(names)]

    def line(cells: Sequence[str]) -> str:
        aligned = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        ]
        return "  ".join(_coloured(cell) for cell in aligned).rstrip()

    print(line(names))
    for row in texts:
        print(line(row))


def fields(pairs: Iterable[tuple[str, Any]]) -> None:
    """One ``name  value`` a line, without those that are None."""
    present = [(visible(name), _text(value)) for name, value in pairs if value is not None]
    width = max((len(name) for name, _ in present), default=0)
    for name, value in present:
        print(f"{name.ljust(width)}  {_coloured(value)}")


def duration(seconds: float | None) -> str | None:
    """``3.2 s``, ``4 min 05 s``, ``2 h 03 min``."""
    if seconds is None:
        return None
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def loss(value: float | None, unit: str = "") -> str | None:
    """A loss, or bits per byte, to four decimals; ``unit`` follows it, such as ``" nats"``."""
    return None if value is None else f"{value:.4f}{unit}"


def states(jobs_by_state: Mapping[JobState, int]) -> str:
    """``2 queued, 1 succeeded``."""
    return ", ".join(f"{number} {state}" for state, number in sorted(jobs_by_state.items())) or "no jobs left"


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of what a JSON object holds, in its order; lists as one value."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            yield prefix + name, ", ".join(map(_leaf, value)) or "none"
        else:
            yield prefix + name, _leaf(value)


def _leaf(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)


def when(moment: datetime | None) -> str | None:
    """Local time to the second."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S") if moment else None


def ago(moment: datetime) -> str:
    seconds = max(0.0, (datetime.now(UTC) - moment).total_seconds())
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return f"{int(seconds)} s ago"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else visible(str(value).replace("\n", " "))


def _cut(text: str, widest: int | None) -> str:
    return text if widest is None or len(text) <= widest else f"{text[: widest - 1]}…"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _coloured(text: str) -> str:
    colour = _COLOURS.get(text.strip())
    if colour is None or os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return text
    return typer.style(text, fg=colour)
