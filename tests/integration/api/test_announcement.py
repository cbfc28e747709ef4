"""Hints to the workers: sent after the commit, and never needed."""

import json

import pytest

from db.repositories import api_tokens
from services.api import enqueue
from services.contracts.settings import Settings
from services.contracts.states import Scope
from tests.integration.api.conftest import ServedApi, served, write_model


@pytest.fixture
def announcing(database, broker, tmp_path):
    model = write_model(tmp_path / "models" / "tiny")
    text = tmp_path / "data" / "text.txt"
    text.parent.mkdir()
    text.write_text("words " * 100)
    with database.connect() as conn:
        tokens = {Scope.ADMIN: api_tokens.create(conn, "admin", Scope.ADMIN)[1]}
    settings = Settings(home=tmp_path, database_url=database.owner_url, broker_url=broker.url)
    with served(settings) as url:
        yield ServedApi(url, database.owner_url, tokens, f"path:{model}", f"file:{text}")


def test_a_new_job_is_announced_by_its_id_and_nothing_else(announcing, broker):
    with announcing.client() as client:
        job = client.post("/v1/jobs", json=announcing.body()).json()
        client.post("/v1/jobs", json=announcing.body())  # reused: nobody needs to hear of it again
        assert client.get("/v1/health/ready").json()["broker"]["ok"] is True
    messages = [json.loads(message) for message in broker.client().lrange("probe", 0, -1)]
    assert len(messages) == 1
    assert messages[0]["headers"]["task"] == "keyhole.run_job"
    assert messages[0]["headers"]["argsrepr"] == f"[{job['id']}]"
    assert messages[0]["content-type"] == "application/json"


def test_a_job_is_accepted_while_the_broker_is_away(announcing, broker):
    broker.client().shutdown(nosave=True)
    with announcing.client() as client:
        answer = client.post("/v1/jobs", json=announcing.body())
        assert (answer.status_code, answer.json()["state"]) == (202, "queued")
        ready = client.get("/v1/health/ready")
    assert (ready.status_code, ready.json()["broker"]["ok"]) == (200, False)


def test_an_address_where_nobody_listens_is_given_up_soon():
    settings = Settings(broker_url="redis://127.0.0.1:9/0")
    assert enqueue.announce(settings, "probe", 1) is False
    assert enqueue.broker_answers(settings) is False
