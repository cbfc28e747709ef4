"""What each service is started with: the secrets it needs and no others."""

import os
from pathlib import Path

import pytest

from services.contracts.settings import Settings
from services.local.child_services import child_services, dashboard_page
from services.local.stack_file import StackFile

STACK = StackFile(
    api_url="http://127.0.0.1:18471",
    dashboard_url="http://127.0.0.1:18472",
    database_url="postgresql://keyhole:owner-password@/keyhole",
    analyst_url="postgresql://analyst:analyst-password@/keyhole",
    broker_url="redis+socket:///nowhere/valkey.sock",
    token="kh_admin",
)


def test_the_dashboard_gets_neither_the_owners_password_nor_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYHOLE_TOKEN", STACK.token)
    monkeypatch.setenv("KEYHOLE_ADMIN_TOKEN", STACK.token)
    monkeypatch.setenv("KEYHOLE_SUPERUSER_URL", "postgresql://postgres:super-password@/postgres")
    services = {service.name: service for service in child_services(Settings(home=tmp_path), STACK)}
    assert set(services) == {"api", "reconciler", "worker", "dashboard"}
    for service in services.values():
        given = "\n".join(service.environment.values())
        assert STACK.token not in given
        assert "super-password" not in given
        assert ("owner-password" in given) == (service.name != "dashboard")
        assert ("analyst-password" in given) == (service.name in ("api", "dashboard"))
        assert "password" not in " ".join(service.command)
        assert service.environment["PATH"] == os.environ["PATH"]


def test_everything_listens_on_loopback_unless_told_otherwise(tmp_path: Path) -> None:
    for service in child_services(Settings(home=tmp_path), STACK):
        if service.name in ("api", "dashboard"):
            assert "127.0.0.1" in service.command


def test_the_dashboards_page_is_found_wherever_the_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert dashboard_page().is_file()
