"""Every job kind is whole: contracts, computation, table, page, documentation and tests. Fails when one is missing."""

from pathlib import Path

import psycopg
import pytest

from services.contracts.kinds import KINDS, Kind
from tests.conftest import MigratedDatabase
from workers.probes import PROBES
from workers.probes.passes import PassProbe

ROOT = Path(__file__).resolve().parents[2]
TYPE_NAMES = {
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "bool": "boolean",
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
every_probe = pytest.mark.parametrize(
    "kind", [kind for kind in KINDS.values() if kind.queue == "probe"], ids=lambda kind: kind.name
)


@every_kind
def test_a_kind_has_every_file_it_needs(kind: Kind) -> None:
    folder = "training" if kind.queue == "training" else "probes"
    page = "runs" if kind.queue == "training" else kind.name
    needed = [
        f"services/contracts/{folder}/{kind.name}.py",
        f"workers/{folder}/{kind.name}.py",
        f"dashboard/views/{page}.py",
        f"docs/{folder}/{kind.name}.md",
        f"tests/unit/workers/{folder}/test_{kind.name}.py",
    ]
    assert [path for path in needed if not (ROOT / path).is_file()] == []


@every_kind
def test_a_kind_can_be_computed_with_its_default_parameters(kind: Kind) -> None:
    assert (kind.name in PROBES) == (kind.queue == "probe")
    assert kind.parameters().model_dump()
    assert all(metric.table in {table.name for table in kind.tables} for metric in kind.metrics)


@every_probe
def test_a_kind_watches_the_passes_that_its_computation_needs(kind: Kind) -> None:
    probe = PROBES[kind.name]
    needs = ("backward" if probe.backward else "forward") if isinstance(probe, PassProbe) else None
    assert kind.watches == needs
    assert (kind.watches == "backward") == ("credit" in kind.parameters.model_fields and needs is not None)


@every_kind
def test_parameters_are_described_for_those_who_submit(kind: Kind) -> None:
    schema = kind.parameters.model_json_schema()
    nameless = [name for name, field in schema["properties"].items() if not field.get("description")]
    assert nameless == []


@every_kind
def test_tables_in_the_database_are_those_of_the_contracts(kind: Kind, module_database: MigratedDatabase) -> None:
    with module_database.connect() as conn:
        for table in kind.tables:
            assert [column.name for column in table.columns[: len(table.key) + 1]] == ["job_id", *table.key]
            assert "sequence" in table.key
            assert _columns(conn, "keyhole", table.name) == [(c.name, TYPE_NAMES[c.type]) for c in table.columns]
            assert _columns(conn, "analysis", table.name) == [(c.name, TYPE_NAMES[c.type]) for c in table.columns]


def _columns(conn: psycopg.Connection, schema: str, table: str) -> list[tuple[str, str]]:
    return conn.execute(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = %s AND table_name = %s "
        "ORDER BY ordinal_position",
        (schema, table),
    ).fetchall()
