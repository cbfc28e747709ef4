"""Finished entropy_bound jobs with made-up rows."""

from typing import Any

import numpy as np
import psycopg
from psycopg.types.json import Jsonb

from db import copy, partitions, summaries
from services.contracts.kinds import KINDS
from services.contracts.probes.entropy_bound import TABLE
from tests.integration.dashboard import samples

KIND = KINDS["entropy_bound"]
LAYERS, HEADS, SEQUENCES, ROWS = 3, 2, 4, 40
TYPES = {"int2": np.int16, "int4": np.int32, "float4": np.float32, "bool": np.bool_}


def columns(obstacles: int = 1, seed: int = 0) -> dict[str, np.ndarray]:
    """Head 0 is sparse; its rank is high in layer 0 and low in the others. Head 1 is spread and of low rank."""
    rng = np.random.default_rng(seed)
    shape = (LAYERS, HEADS, SEQUENCES)
    layer, head, sequence = (axis.ravel() for axis in np.indices(shape))
    sparse = head == 0
    found: dict[str, Any] = {column.name: rng.uniform(0.1, 1, len(layer)) for column in TABLE.columns[4:]}
    found |= {"layer": layer, "head": head, "sequence": sequence, "rank_rows": np.full(len(layer), ROWS)}
    found |= {"biased": np.zeros(len(layer)), "obstacles": np.full(len(layer), obstacles)}
    found["top_8"] = np.where(sparse, 0.9, 0.2) + rng.uniform(-0.05, 0.05, len(layer))
    found["effective_rank"] = np.where(sparse & (layer == 0), 30.0, 2.0)
    found["log10_bound"] = -rng.uniform(1, 20, len(layer))
    if obstacles:
        found["sigma_product"] = found["log10_product_bound"] = np.full(len(layer), np.nan)
    return {column.name: np.asarray(found[column.name]).astype(TYPES[column.type]) for column in TABLE.columns[1:]}


def insert(conn: psycopg.Connection, found: dict[str, np.ndarray], **job: Any) -> int:
    """A succeeded job with these rows and their summaries."""
    described = {"kind": KIND.name, "parameters": Jsonb(KIND.parameters().model_dump()), "rows": len(found["layer"])}
    job_id = samples.insert_job(conn, "succeeded", **described | job)
    with conn.transaction():
        partitions.create(conn, TABLE.name, job_id)
        copy.copy_rows(conn, TABLE, job_id, found)
    summaries.compute(conn, job_id, KIND.metrics)
    return job_id
