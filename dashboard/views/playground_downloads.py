"""Numbers and figure of a playground example as files."""

import json

import pandas as pd
import plotly.graph_objects as go
import streamlit as st


def downloads(name: str, table: pd.DataFrame, figure: go.Figure) -> None:
    with st.container(horizontal=True, gap="small"):
        for label, extension, mime, data in (
            ("CSV", "csv", "text/csv", table.to_csv(index=False)),
            ("Figure data", "json", "application/json", lambda: json.dumps(figure.to_plotly_json(), default=_plain)),
        ):
            st.download_button(
                label,
                data,
                file_name=f"playground-{name}.{extension}",
                mime=mime,
                icon=":material/download:",
                on_click="ignore",
                type="tertiary",
                key=f"{extension}_{name}",
            )


def _plain(value: object) -> object:
    """Arrays as lists."""
    return value.tolist() if hasattr(value, "tolist") else str(value)  # type: ignore[attr-defined]  # NumPy's
