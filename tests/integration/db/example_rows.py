"""Rows of every result table, made up so that each example of docs/sql.md finds some."""

from itertools import combinations, product

import numpy as np

from services.contracts.tables import ResultTable

Columns = dict[str, np.ndarray]

CHECKPOINTS = (("a", 10), ("a", 20), ("b", 10), ("b", 20))  # run and step
_KEY = {"layer": range(2), "head": range(3), "sequence": range(5), "query": range(6)}
# what tells rows of a table apart besides these
_BESIDES = {
    "buried_pick": [{"place": place} for place in (1, 2)],
    "jacobian_mode": [{"mode": mode} for mode in range(4)],
    "ratchet_band": [{"band": band} for band in range(5)],
    "transfer_sweep": [{"c": c} for c in (-3.0, 0.0, 3.0)],
    "pattern_distance": [
        {"first": first, "second": second} for first, second in combinations(range(len(CHECKPOINTS)), 2)
    ],
}
# for the conditions of examples; all other numbers are random
_FIXED = {
    ("buried_key", "attention_rank_smallest"): 600,
    ("buried_pick", "attention_rank"): 7,
    ("entropy_bound", "rank_rows"): 128,
    ("transfer_sweep", "r"): 0.05,
}
_TYPES = {
    "int2": np.int16,
    "int4": np.int32,
    "int8": np.int64,
    "float4": np.float32,
    "float8": np.float64,
    "bool": np.bool_,
}


def rows(table: ResultTable, seed: int) -> Columns:
    """Shares between 0 and 1, integers from 0 to 5, in the order in which a probe writes them."""
    axes = [[{name: value} for value in _KEY[name]] for name in table.key]
    keys = [
        {name: value for part in parts for name, value in part.items()}
        for parts in product(*axes, _BESIDES.get(table.name, [{}]))
    ]
    random = np.random.default_rng(seed)
    found: Columns = {}
    for column in table.columns[1:]:
        if column.name in keys[0]:
            values = np.array([key[column.name] for key in keys])
        elif (table.name, column.name) in _FIXED:
            values = np.full(len(keys), _FIXED[table.name, column.name])
        elif column.type.startswith("float"):
            values = random.uniform(0.01, 1, len(keys))
        else:
            values = random.integers(0, 2 if column.type == "bool" else 6, len(keys))
        found[column.name] = values.astype(_TYPES[column.type])
    return found
