"""Tables as Parquet, whatever their cells hold."""

import io
from datetime import UTC, datetime

import pandas as pd
import pyarrow.parquet as pq

from dashboard.downloads import parquet


def test_types_stay_and_cells_of_several_types_become_text() -> None:
    moment = datetime(2026, 9, 4, tzinfo=UTC)
    rows = [
        {"n": 1, "loss": 3.5, "name": "a", "at": moment, "list": ["x"], "mixed": 1, "setting": {"lr": 0.1}},
        {"n": 2, "loss": None, "name": None, "at": moment, "list": [], "mixed": "none", "setting": None},
    ]
    table = pq.read_table(io.BytesIO(parquet(pd.DataFrame(rows))))
    found = table.to_pylist()
    assert [row["n"] for row in found] == [1, 2]
    assert [row["loss"] for row in found] == [3.5, None]
    assert [row["at"] for row in found] == [moment, moment]
    assert [row["list"] for row in found] == [["x"], []]
    assert [row["mixed"] for row in found] == ["1", "none"]
    assert found[0]["setting"] == {"lr": 0.1}


def test_a_table_without_rows_or_columns_is_a_file_too() -> None:
    assert pq.read_table(io.BytesIO(parquet(pd.DataFrame()))).num_rows == 0
