"""Finished attention_profile jobs with made-up rows."""

from typing import Any

import numpy as np
import psycopg
from psycopg.types.json import Jsonb

from db import copy, partitions, summaries
from services.contracts.kinds import KINDS
from services.contracts.probes.attention_profile import REPEATED_TABLE, TABLE
from tests.integration.dashboard import samples

KIND = KINDS["attention_profile"]
LAYERS, HEADS, SEQUENCES, QUERIES = 3, 2, 2, [3, 5, 11]


def columns(seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """Rows by table; entropy grows with the layer, and every weight points to one of the earlier keys."""
    rng = np.random.default_rng(seed)
    axes = np.meshgrid(range(LAYERS), range(HEADS), range(SEQUENCES), QUERIES, indexing="ij")
    layer, head, sequence, query = (axis.ravel() for axis in axes)
    shares = {name: rng.uniform(0, 1, len(layer)) for name in TABLE_WEIGHTS}
    rows = {"layer": layer, "head": head, "sequence": sequence, "query": query}
    rows |= {"entropy_nats": 2 * layer + rng.uniform(0, 1, len(layer)), "top_key": query // 3} | shares
    few = np.meshgrid(range(LAYERS), range(HEADS), range(SEQUENCES), indexing="ij")
    repeated = dict(zip(("layer", "head", "sequence"), (axis.ravel() for axis in few), strict=True))
    repeated |= {column.name: rng.uniform(0, 1, LAYERS * HEADS * SEQUENCES) for column in REPEATED_TABLE.columns[4:]}
    types = {"int2": np.int16, "int4": np.int32, "float4": np.float32}
    return {
        table.name: {column.name: found[column.name].astype(types[column.type]) for column in table.columns[1:]}
        for table, found in ((TABLE, rows), (REPEATED_TABLE, repeated))
    }


TABLE_WEIGHTS = [c.name for c in TABLE.columns[5:] if c.name not in ("entropy_nats", "top_key")]


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


def head_means(found: dict[str, dict[str, np.ndarray]], name: str) -> np.ndarray:
    """Means of a column by layer and head, with NumPy."""
    table = TABLE.name if name in found[TABLE.name] else REPEATED_TABLE.name
    return found[table][name].astype(float).reshape(LAYERS, HEADS, -1).mean(-1)
