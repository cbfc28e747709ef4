"""A model hub that accepts connections and never answers: other requests must not notice."""

import socket
import threading
import time

import httpx
import pytest
from huggingface_hub import constants

from services.api import database, resolving
from services.api.app import create_app
from services.contracts.settings import Settings
from services.contracts.states import Scope
from services.sources import hub
from tests.integration.api.conftest import serving

SUBMISSIONS = 60  # more than there are connections (20) and threads (40) for requests


@pytest.fixture
def silent_hub(monkeypatch, tmp_path):
    """The address of a listener that nobody reads from; connections wait in its backlog, or are kept open unread."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "empty"))
    yield listener
    listener.close()


def test_while_the_hub_hangs_others_are_answered_and_submissions_told_to_come_again(
    api, admin, silent_hub, monkeypatch
):
    monkeypatch.setattr(resolving, "WAIT_S", 1.0)
    monkeypatch.setattr(hub, "TIMEOUT_S", 3.0)
    answers: list[httpx.Response] = []

    def submit() -> None:
        with api.client(Scope.SUBMIT) as client:
            answers.append(client.post("/v1/jobs", json=api.body(model="hf:org/slow"), timeout=60))

    threads = [threading.Thread(target=submit) for _ in range(SUBMISSIONS)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)  # into the waiting
    others = [admin.get("/v1/jobs"), admin.get("/v1/kinds"), admin.post("/v1/jobs", json=api.body(label="of files"))]
    unanswered = SUBMISSIONS - len(answers)
    for thread in threads:
        thread.join(60)
    assert [answer.status_code for answer in others] in ([200, 200, 200], [200, 200, 202])
    assert unanswered >= resolving.AT_ONCE, "the others were answered after the hub was given up, not meanwhile"
    assert [answer.status_code for answer in answers] == [503] * SUBMISSIONS
    details = [answer.json()["detail"] for answer in answers]
    assert sum("hub does not answer" in detail for detail in details) >= resolving.AT_ONCE
    assert any("busy resolving" in detail for detail in details)
    assert all(answer.headers["Retry-After"] and answer.json()["hint"] for answer in answers)


def test_a_pool_without_a_free_connection_is_told_as_busy_and_not_as_a_dead_database(module_database, tmp_path):
    settings = Settings(home=tmp_path, database_url=module_database.owner_url)
    app = create_app(settings)
    with serving(app) as url:
        pool = app.state.pool
        pool.timeout = 0.3
        taken = [pool.getconn(timeout=20) for _ in range(pool.max_size)]
        answer = httpx.get(f"{url}/v1/jobs", headers={"Authorization": "Bearer kh_x"}, timeout=20)
        ready = httpx.get(f"{url}/v1/health/ready", timeout=20)
        for conn in taken:
            pool.putconn(conn)
        assert httpx.get(f"{url}/v1/jobs", headers={"Authorization": "Bearer kh_x"}).status_code == 401
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert "busy" in answer.json()["detail"]
    assert (ready.status_code, ready.json()["ready"]) == (200, True)
    assert answer.headers["Retry-After"]


def test_whether_the_database_answers_is_asked_of_the_database(module_database, tmp_path):
    assert database.answers(Settings(home=tmp_path, database_url=module_database.owner_url))
    assert not database.answers(Settings(home=tmp_path, database_url="postgresql://nobody@127.0.0.1:9/none"))
