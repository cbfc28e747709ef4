"""A finished buried_keys job: rows that the probe measured on a tiny random model, with made-up text."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import psycopg
from psycopg.types.json import Jsonb

from db import copy, partitions, summaries
from services.contracts.kinds import KINDS
from services.contracts.probes.buried_keys import BuriedKeysParameters, SparseQueryRange
from tests.integration.dashboard import samples
from tests.unit.workers.families import tiny, tokens
from tests.unit.workers.loaded import loaded
from workers.probes import buried_keys, passes

KIND = KINDS["buried_keys"]
SEQUENCES, LENGTH, MIN_HEADS = 2, 23, 3
HOSTILE = "<script>alert(1)</script>"

Rows = Mapping[str, Mapping[str, np.ndarray]]


def words() -> list[list[str]]:
    """A word of its own for every position; token 2 of both sequences is hostile, and 5 a line break."""
    lines = [[f" w{sequence}.{position}" for position in range(LENGTH)] for sequence in range(SEQUENCES)]
    for line in lines:
        line[2], line[5] = HOSTILE, "\n"
    return lines


def parameters(**options: Any) -> BuriedKeysParameters:
    given: dict[str, Any] = {"sequences": SEQUENCES, "length": LENGTH, "batch": 2, "top_k": 5, "min_heads": MIN_HEADS}
    return BuriedKeysParameters.model_validate(given | {"queries": SparseQueryRange(start=3, step=1)} | options)


def measured(**options: Any) -> Rows:
    ids = tokens(SEQUENCES, LENGTH).numpy().astype(np.int32)
    return passes.measure(buried_keys.PROBE, loaded(tiny("llama")), parameters(**options), ids, 0).rows


def insert(conn: psycopg.Connection, rows: Rows, chosen: BuriedKeysParameters, **job: Any) -> int:
    """A succeeded job with these rows and their summaries."""
    described = {"kind": KIND.name, "parameters": Jsonb(chosen.model_dump()), "rows": 1} | job
    job_id = samples.insert_job(conn, "succeeded", **described)
    with conn.transaction():
        for table in KIND.tables:
            partitions.create(conn, table.name, job_id)
            copy.copy_rows(conn, table, job_id, rows[table.name])
    summaries.compute(conn, job_id, KIND.metrics)
    return job_id
