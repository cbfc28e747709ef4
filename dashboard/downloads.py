"""What stands below every figure and table: its SQL, its rows as CSV, and the figure itself."""

import json

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

CHART_CONFIG = {"displaylogo": False, "displayModeBar": False}


def sql_and_data(kind: str, name: str, sql: str, data: pd.DataFrame, figure: go.Figure | None = None) -> None:
    """The statement that gave a figure or table, its rows as CSV, and a figure itself as JSON for plotly."""
    stem = f"{kind.replace('_', '-')}-{name}"
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        with st.popover("SQL", icon=":material/database:", type="tertiary"):
            st.caption("Run it with `keyhole sql` or in `keyhole psql`.")
            st.code(sql, language="sql")
        st.download_button(
            "CSV",
            data.to_csv(index=False),
            file_name=f"{stem}.csv",
            mime="text/csv",
            icon=":material/download:",
            on_click="ignore",
            type="tertiary",
            key=f"csv_{name}",
            help="the rows behind this figure",
        )
        if figure is None:
            return
        st.download_button(
            "Figure data",
            lambda: json.dumps(figure.to_plotly_json(), default=str),
            file_name=f"{stem}.json",
            mime="application/json",
            icon=":material/download:",
            on_click="ignore",
            type="tertiary",
            key=f"json_{name}",
            help="the figure as plotly JSON",
        )
