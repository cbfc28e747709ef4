"""docker-compose.yml and Dockerfile: what a team's deployment promises, read from the files."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {"migrate", "api", "reconciler", "worker-cpu", "worker-gpu", "dashboard"}
SECRETS = {
    "KEYHOLE_SUPERUSER_PASSWORD",
    "KEYHOLE_OWNER_PASSWORD",
    "KEYHOLE_ANALYST_PASSWORD",
    "KEYHOLE_BROKER_PASSWORD",
    "KEYHOLE_ADMIN_TOKEN",
}


def test_the_whole_system_is_there() -> None:
    assert set(SERVICES) == OURS | {"postgres", "redis"}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_says_whether_it_is_well(name: str) -> None:
    health = SERVICES[name]["healthcheck"]
    if name == "migrate":  # ends by itself
        assert health == {"disable": True}
    else:
        assert health["test"][0] in ("CMD", "CMD-SHELL")


def test_no_secret_has_a_default_and_a_missing_one_stops_compose() -> None:
    used = re.findall(r"(?<!\$)\$\{(\w+)([^}]*)\}", TEXT)
    assert {name for name, _ in used} >= SECRETS
    for name, rest in used:
        if name in SECRETS:
            assert rest.startswith(":?"), f"{name} could be empty"
    assert not re.search(r"(?i)(password|token)\w*\s*[:=]\s*['\"]?[A-Za-z0-9]{4,}\b(?!\$)", _without_comments(TEXT))


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_images_are_pinned_to_a_version(name: str) -> None:
    assert re.fullmatch(r"[\w/-]+:\d+(\.\d+)+", SERVICES[name]["image"])


def test_only_api_and_dashboard_are_published_and_by_default_on_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"api", "dashboard"}
    for ports in published.values():
        assert all(port.startswith("${KEYHOLE_PUBLISH:-127.0.0.1}:") for port in ports)


@pytest.mark.parametrize("name", sorted(OURS))
def test_our_containers_run_without_rights(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_each_service_gets_only_the_secrets_it_needs() -> None:
    def given(name: str) -> set[str]:
        return {secret for secret in SECRETS if secret in str(SERVICES[name].get("environment", ""))}

    assert given("dashboard") == {"KEYHOLE_ANALYST_PASSWORD"}
    assert given("worker-cpu") == given("worker-gpu") == {"KEYHOLE_OWNER_PASSWORD", "KEYHOLE_BROKER_PASSWORD"}
    assert given("api") == given("worker-cpu") | {"KEYHOLE_ANALYST_PASSWORD"}
    assert [name for name in SERVICES if "KEYHOLE_SUPERUSER_PASSWORD" in given(name)] == ["postgres", "migrate"]


def test_every_target_that_compose_builds_is_in_the_dockerfile_and_pins_its_base() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.MULTILINE))
    assert {SERVICES[name]["build"]["target"] for name in OURS} <= stages
    outside = [image for image in re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE) if image not in stages]
    assert outside
    assert all(re.fullmatch(r"[\w/-]+:\d+\.\d+\.\d+[\w.-]*", image) for image in outside)
    assert dockerfile.count("USER keyhole") == 2


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
