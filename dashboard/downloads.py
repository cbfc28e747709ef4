"""What stands below every figure and table: its SQL, its rows as CSV and Parquet, and the figure itself."""

import io
import json
from collections.abc import Callable

import pandas as pd
import plotly.graph_objects as go
import pyarrow as pa
import pyarrow.parquet as pq
import streamlit as st

CHART_CONFIG = {"displaylogo": False, "displayModeBar": False}
_PARQUET = "application/vnd.apache.parquet"
_KEYS = {"CSV": "csv", "Parquet": "parquet", "Figure data": "json"}


def sql_and_data(kind: str, name: str, sql: str, data: pd.DataFrame, figure: go.Figure | None = None) -> None:
    """The statement that gave a figure or table, its rows, and a figure itself as JSON for plotly."""
    stem = f"{kind.replace('_', '-')}-{name}"
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        with st.popover("SQL", icon=":material/database:", type="tertiary"):
            st.caption("Run it with `keyhole sql` or in `keyhole psql`.")
            st.code(sql, language="sql")
        _download("CSV", lambda: data.to_csv(index=False), f"{stem}.csv", "text/csv", "the rows behind this figure")
        _download("Parquet", lambda: parquet(data), f"{stem}.parquet", _PARQUET, "the same rows with their types")
        if figure is None:
            return
        _download(
            "Figure data",
            lambda: json.dumps(figure.to_plotly_json(), default=str),
            f"{stem}.json",
            "application/json",
            "the figure as plotly JSON",
        )


def all_records(name: str, records: Callable[[], list[dict[str, object]]], told: str) -> None:
    """Everything that a list's filters match, not only the page of it that is shown; read when it is asked for."""
    with st.container(horizontal=True, gap="small"):
        stem = f"keyhole-{name}"
        _download("CSV", lambda: pd.DataFrame(records()).to_csv(index=False), f"{stem}.csv", "text/csv", told)
        _download("Parquet", lambda: parquet(pd.DataFrame(records())), f"{stem}.parquet", _PARQUET, told)


def parquet(data: pd.DataFrame) -> bytes:
    """A column of values of several types is stored as text: JSON of lists and objects, else as it reads."""
    columns = {str(name): _arrow(data[name]) for name in data.columns}
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def _arrow(column: pd.Series) -> pa.Array:
    try:
        return pa.Array.from_pandas(column)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else _text(value) for value in column], pa.string())


def _text(value: object) -> str:
    return json.dumps(value, default=str) if isinstance(value, dict | list) else str(value)


def _download(label: str, content: Callable[[], str | bytes], file_name: str, mime: str, told: str) -> None:
    st.download_button(
        label,
        content,
        file_name=file_name,
        mime=mime,
        icon=":material/download:",
        on_click="ignore",
        type="tertiary",
        key=f"{_KEYS[label]}_{file_name.rpartition('.')[0]}",
        help=told,
    )
