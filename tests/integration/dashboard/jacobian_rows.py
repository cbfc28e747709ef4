"""Finished jacobian_spectrum jobs with made-up rows."""

from typing import Any

import numpy as np
import psycopg
from psycopg.types.json import Jsonb

from db import copy, partitions, summaries
from services.contracts.kinds import KINDS
from services.contracts.probes.jacobian_spectrum import MODE_TABLE, TABLE
from tests.integration.dashboard import samples

KIND = KINDS["jacobian_spectrum"]
LAYERS, HEADS, SEQUENCES, QUERIES, MODES = 4, 2, 3, [0, 4, 9], 5


def columns(seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """Rows by table. Query 0 has no Jacobian; ranks grow with the layer, the spectrum falls tenfold by mode."""
    rng = np.random.default_rng(seed)
    layer, head, sequence, query = _axes(LAYERS, HEADS, SEQUENCES, QUERIES)
    defined = query > 0
    rows = {"layer": layer, "head": head, "sequence": sequence, "query": query}
    rows |= {
        name: np.where(defined, 1 + 2.8 * layer + rng.uniform(0, 2, len(layer)), np.nan)
        for name in ("effective_rank", "effective_rank_sigma", "participation_ratio")
    }
    rows["modes_above_1e_2"] = np.where(defined, 3 + layer, 0)
    rows["modes_above_1e_3"] = np.where(defined, 4 + layer, 0)
    rows["sigma_max"] = np.where(defined, rng.uniform(0.1, 2, len(layer)), 0)
    rows["top_attention"] = np.where(defined, rng.uniform(0.2, 0.9, len(layer)), 1)
    layer, head, sequence, mode = _axes(LAYERS, HEADS, SEQUENCES, range(MODES))
    mean = 10.0**-mode * (1 + 0.1 * sequence)
    modes = {"layer": layer, "head": head, "sequence": sequence, "mode": mode, "mean": mean, "queries": 2 + sequence}
    modes |= {"q05": mean / 2, "q25": mean / 1.5, "median": mean, "q75": mean * 1.5, "q95": mean * 2}
    types = {"int2": np.int16, "int4": np.int32, "float4": np.float32}
    return {
        table.name: {column.name: found[column.name].astype(types[column.type]) for column in table.columns[1:]}
        for table, found in ((TABLE, rows), (MODE_TABLE, modes))
    }


def _axes(layers: int, heads: int, sequences: int, last: Any) -> list[np.ndarray]:
    return [axis.ravel() for axis in np.meshgrid(range(layers), range(heads), range(sequences), last, indexing="ij")]


def insert(conn: psycopg.Connection, found: dict[str, dict[str, np.ndarray]], **job: Any) -> int:
    """A succeeded job with these rows and their summaries."""
    parameters = Jsonb(KIND.parameters().model_dump())
    described = {"kind": KIND.name, "parameters": parameters, "rows": len(found[TABLE.name]["layer"])} | job
    job_id = samples.insert_job(conn, "succeeded", **described)
    with conn.transaction():
        for table in KIND.tables:
            partitions.create(conn, table.name, job_id)
            copy.copy_rows(conn, table, job_id, found[table.name])
    summaries.compute(conn, job_id, KIND.metrics)
    return job_id


def of_head(found: dict[str, dict[str, np.ndarray]], column: str, layer: int, head: int) -> np.ndarray:
    """A column's defined values in one head."""
    rows = found[TABLE.name]
    values = rows[column][(rows["layer"] == layer) & (rows["head"] == head) & (rows["query"] > 0)]
    return values.astype(float)
