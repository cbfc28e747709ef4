"""A database to write into, and pages of a dashboard over it."""

from collections.abc import Iterator

import psycopg
import pytest
from streamlit.testing.v1 import AppTest

from tests.conftest import MigratedDatabase
from tests.integration.dashboard.opened import APP, Open


@pytest.fixture
def owner(database: MigratedDatabase) -> Iterator[psycopg.Connection]:
    with database.connect() as conn:
        yield conn


@pytest.fixture
def open_page(database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a page at an address, and fails on a traceback in it."""
    monkeypatch.setenv("KEYHOLE_ANALYST_URL", database.analyst_url)
    monkeypatch.setenv("KEYHOLE_API_URL", "http://127.0.0.1:9")

    def opened(page: str = "views/jobs.py", **query: str) -> AppTest:
        app = AppTest.from_file(APP, default_timeout=60)
        app.query_params.update(query)
        if page != "views/jobs.py":
            app.switch_page(page)
        app.run()
        assert not app.exception
        return app

    return opened
