"""Where the client goes, with which token, and what it makes of answers that are no problem documents."""

from contextlib import closing

import httpx
import pytest

from services.client.connection import Connection, Unreachable, find_api, raise_for_problem
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import settings
from services.local import stack_file
from services.local.stack_file import StackFile


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ("API_URL", "TOKEN", "DATABASE_URL", "BROKER_URL"):
        monkeypatch.delenv(f"KEYHOLE_{name}", raising=False)
    monkeypatch.setenv("KEYHOLE_HOME", str(tmp_path))
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


def start_stack(home) -> None:
    urls = {"database_url": "postgresql:///x", "analyst_url": "postgresql:///x", "broker_url": "redis:///x"}
    addresses = {"api_url": "http://127.0.0.1:8471", "dashboard_url": "http://127.0.0.1:8472"}
    stack_file.write(home, StackFile(token="kh_of_the_stack", **addresses, **urls))


def test_the_embedded_stack_is_found_with_its_token(home):
    start_stack(home)
    assert find_api() == ("http://127.0.0.1:8471", "kh_of_the_stack")


def test_the_token_of_the_stack_goes_to_no_other_address(home, monkeypatch):
    start_stack(home)
    assert find_api("http://elsewhere:1") == ("http://elsewhere:1", None)
    monkeypatch.setenv("KEYHOLE_API_URL", "https://team.example/keyhole/")
    settings.cache_clear()
    assert find_api() == ("https://team.example/keyhole", None)


def test_a_token_out_of_a_file_may_end_in_a_newline(home):
    assert find_api("http://elsewhere:1", "kh_mine\n") == ("http://elsewhere:1", "kh_mine")


def test_nothing_to_talk_to_is_told_with_the_next_step(home):
    with pytest.raises(Unreachable, match="keyhole up"):
        find_api()


def test_an_address_of_another_kind_is_refused(home):
    with pytest.raises(KeyholeError, match="http://"):
        find_api("localhost:8471")


@pytest.mark.parametrize(
    ("status", "body", "raised", "code"),
    [
        (404, b"<html>not here</html>", KeyholeError, ErrorCode.UNEXPECTED),
        (502, b"bad gateway", Unreachable, ErrorCode.UNAVAILABLE),
        (400, b'{"code": "of_a_newer_server", "detail": "no"}', KeyholeError, ErrorCode.UNEXPECTED),
        (400, b'{"code": ["list"], "detail": null}', KeyholeError, ErrorCode.UNEXPECTED),
        (400, b"[]", KeyholeError, ErrorCode.UNEXPECTED),
        (409, b'{"code": "conflict", "detail": "no", "hint": "wait"}', KeyholeError, ErrorCode.CONFLICT),
    ],
)
def test_every_error_answer_becomes_one_exception(status, body, raised, code):
    response = httpx.Response(status, content=body, request=httpx.Request("GET", "http://x/v1/jobs"))
    with pytest.raises(KeyholeError) as caught:
        raise_for_problem(response)
    assert type(caught.value) is raised
    assert caught.value.code is code


@pytest.mark.parametrize(
    "options",
    [
        {"json": {"length": float("nan")}},
        {"json": {"length": float("-inf")}},
        {"json": {"label": "half \ud800 of a pair"}},
        {"json": {"sql": "SELECT 1 \udcff"}},
        {"json": {"parameters": {"length": object()}}},
        {"params": {"label": "\udcff"}},
        {"headers": {"Idempotency-Key": "schl\u00fcssel"}},
    ],
)
def test_what_cannot_be_sent_is_refused_before_it_is_sent(home, options):
    nobody = Connection("http://127.0.0.1:9", "kh_x")
    with pytest.raises(KeyholeError) as caught:
        nobody.request("POST", "/v1/jobs", **options)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert caught.value.hint
    with pytest.raises(KeyholeError) as caught, nobody.stream("POST", "/v1/sql", **options):
        pass
    assert caught.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("token", ["kh_\u00fc", "kh_two\nlines"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_repeated(home, token):
    with pytest.raises(KeyholeError) as caught:
        Connection("http://127.0.0.1:9", token).request("GET", "/v1/jobs")
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert token not in str(caught.value)


@pytest.mark.parametrize("url", ["http://[", "http://host:port", "http://"])
def test_an_address_that_is_none_is_a_message(home, url):
    with pytest.raises(KeyholeError):
        Connection(url, "kh_x").request("GET", "/v1/jobs")


def test_a_number_that_json_has_not_is_told_with_its_field():
    body = {"kind": "training", "parameters": {"steps": 5, "optimizer": {"betas": [0.9, float("nan")]}}}
    with closing(Connection("http://127.0.0.1:1", "kh_mine")) as connection, pytest.raises(KeyholeError) as refused:
        connection.request("POST", "/v1/jobs", json=body)
    assert refused.value.message == "parameters.optimizer.betas.1 is nan; it must be a finite number."
