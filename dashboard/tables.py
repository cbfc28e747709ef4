"""Two-column tables of names and values; user text goes into cells, which show it as it is."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st


def nested(values: Mapping[str, Any] | None, prefix: str = "") -> list[tuple[str, str]]:
    """The leaves of a JSON object with dotted names."""
    pairs: list[tuple[str, str]] = []
    for name, value in (values or {}).items():
        if isinstance(value, Mapping):
            pairs += nested(value, f"{prefix}{name}.")
        else:
            pairs.append((prefix + name, _text(value)))
    return pairs


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)


def rows_height(rows: int, at_most: int = 8) -> int:
    """Pixels that a data frame takes without empty rows; beyond ``at_most`` rows it scrolls."""
    return 38 + 35 * min(rows, at_most)


def table(pairs: Sequence[tuple[str, Any]], *, key: str, empty: str = "") -> None:
    if not pairs:
        st.caption(empty)
        return
    st.dataframe(
        pd.DataFrame([(name, _text(value)) for name, value in pairs], columns=["Name", "Value"]),
        hide_index=True,
        key=f"table_{key}",
        height=rows_height(len(pairs), at_most=len(pairs)),
        column_config={
            "Name": st.column_config.TextColumn(width=200),
            "Value": st.column_config.TextColumn(width="large"),
        },
    )
