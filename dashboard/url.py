"""The state of a page in its address, so that a link shows what its sender saw.

The address is the truth: a widget takes its value from there at every run and writes there when it changes.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st


def integers(name: str) -> list[int]:
    """Comma-separated non-negative integers of a query parameter; what is none is left out."""
    parts = st.query_params.get(name, "").split(",")
    return [int(part) for part in dict.fromkeys(parts) if part.isascii() and part.isdigit() and len(part) < 10]


def integer(name: str) -> int | None:
    found = integers(name)
    return found[0] if found else None


def number(name: str, default: float, low: float, high: float) -> float:
    """A number of a query parameter, no less than ``low`` and no more than ``high``; the default where it is none."""
    try:
        found = float(st.query_params.get(name, ""))
    except ValueError:
        return default
    return min(max(found, low), high) if math.isfinite(found) else default


def write(name: str, value: Any) -> None:
    """Set a query parameter, or remove it where there is no value."""
    text = ",".join(str(item) for item in value) if isinstance(value, list | tuple) else value
    if text is None or text == "":
        st.query_params.pop(name, None)
    else:
        st.query_params[name] = str(text)


def bind(name: str, value: Any, options: Sequence[Any]) -> dict[str, Any]:
    """Arguments that make a selection widget show ``value`` (if it is an option) and write its changes to ``name``."""
    key = f"{name}_choice"
    if isinstance(value, list):
        st.session_state[key] = [item for item in value if item in options]
    else:
        st.session_state[key] = value if value in options else (options[0] if options else None)
    return {"key": key, "on_change": _writer(name, key)}


def bind_number(name: str, value: float) -> dict[str, Any]:
    """The same for a number field."""
    key = f"{name}_choice"
    st.session_state[key] = value
    return {"key": key, "on_change": _writer(name, key)}


def _writer(name: str, key: str) -> Callable[[], None]:
    return lambda: write(name, st.session_state[key])
