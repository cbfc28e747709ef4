"""What tests of the database share: a connection as the owner to a migrated database of the test's own."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.conftest import MigratedDatabase


@pytest.fixture
def conn(database: MigratedDatabase) -> Iterator[psycopg.Connection]:
    with database.connect() as connection:
        yield connection


@pytest.fixture
def owner(module_database: MigratedDatabase) -> Iterator[psycopg.Connection]:
    """The same to the database that the tests of a module share."""
    with module_database.connect() as conn:
        yield conn
