"""Every error is a problem document; health, metrics, tokens and SQL over plain HTTP."""

import json
import threading
import time

import httpx
import psycopg
import pytest
from structlog.testing import capture_logs

from services.contracts.jobs import Problem
from services.contracts.settings import Settings
from services.contracts.states import Scope
from tests.integration.api import stand_in_worker
from tests.integration.api.conftest import served


def problem(answer: httpx.Response) -> Problem:
    """The answer as a problem, checked for what every problem has."""
    assert answer.headers["Content-Type"] == "application/problem+json", answer.text
    found = Problem.model_validate(answer.json())
    assert (found.status, found.request_id) == (answer.status_code, answer.headers["X-Request-Id"])
    return found


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("PUT", "/v1/jobs", 405, "invalid_request"),
        ("GET", "/v1/jobs/999999999", 404, "not_found"),
        ("GET", "/v1/jobs/abc", 422, "invalid_request"),
        ("GET", "/v1/jobs/99999999999999999999", 422, "invalid_request"),
        ("POST", "/v1/jobs/999999999/cancel", 404, "not_found"),
        ("DELETE", "/v1/jobs/999999999", 404, "not_found"),
        ("GET", "/v1/jobs?limit=0", 422, "invalid_request"),
        ("GET", "/v1/jobs?state=asleep", 422, "invalid_request"),
        ("GET", "/v1/jobs?q=%00", 422, "invalid_request"),
        ("GET", "/v1/jobs?kind=unknown", 422, "unknown_kind"),
        ("GET", "/v1/jobs?sate=queued", 422, "invalid_request"),
        ("GET", "/v1/jobs/1?x", 422, "invalid_request"),
        ("GET", "/v1/jobs/1/events?from=3", 422, "invalid_request"),
        ("GET", "/v1/jobs/1/summary?metrics=n", 422, "invalid_request"),
        ("GET", "/v1/jobs/1/tables/token?columns=text", 422, "invalid_request"),
        ("GET", "/v1/kinds?kind=x", 422, "invalid_request"),
        ("GET", "/v1/tokens?all=1", 422, "invalid_request"),
        ("GET", "/v1/jobs/999999999/events", 404, "not_found"),
        ("DELETE", "/v1/tokens/999999999", 404, "not_found"),
    ],
)
def test_every_refusal_is_a_problem_with_its_code(admin, method, path, status, code):
    answer = admin.request(method, path)
    assert (answer.status_code, problem(answer).code) == (status, code)
    assert problem(answer).hint


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b"", 422, "required"),
        (b"{", 422, "line 1, column 2"),
        (b'{"kind":\n "x",\n  kind: 2}', 422, "line 3, column 3"),
        (b"[]", 422, "object"),
        (b"null", 422, "object"),
        (b'{"kind": 3}', 422, "no job kind"),
        (b'"text"', 422, "object"),
        (b"\xff\xfe", 422, "not JSON"),
        (b'{"kind": "\xe9"}', 400, "not UTF-8: byte 10"),
        (b'{"priority": ' + b"9" * 5000 + b"}", 400, "too many digits"),
        (b"[" * 200_000, 400, "nested too deeply"),
    ],
)
def test_a_body_that_is_no_submission_is_a_problem_that_says_why(admin, body, status, told):
    answer = admin.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert told in problem(answer).detail
    assert problem(answer).hint


def test_an_unknown_optimizer_is_no_unknown_kind(api, admin):
    refused = problem(admin.post("/v1/jobs", json=api.body(kind="training", parameters={"optimizer": "lion"})))
    assert (refused.code, refused.errors[0]["where"]) == ("invalid_request", "parameters.optimizer")
    assert "'lion'" in refused.detail
    assert "adamw, sgd, muon" in refused.hint


@pytest.mark.parametrize("headers", [{"Content-Type": "text/plain"}, {}])
def test_a_body_that_is_not_called_json_is_told_which_header_to_send(api, admin, headers):
    answer = admin.post("/v1/jobs", content=json.dumps(api.body()), headers=headers)
    assert answer.status_code == 415
    assert "Content-Type: application/json" in problem(answer).hint


def test_a_body_over_the_limit_is_refused_with_and_without_a_length(admin):
    large = b'{"kind": "' + b"x" * 1_100_000 + b'"}'
    kind = {"Content-Type": "application/json"}
    for content in (large, iter([large])):
        refused = problem(admin.post("/v1/jobs", content=content, headers=kind))
        assert (refused.status, bool(refused.hint)) == (413, True)
        assert "1,000,000" in refused.detail


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("PUT", "/v1/jobs", "GET, POST"), ("POST", "/v1/jobs/7", "GET, DELETE"), ("DELETE", "/v1/health", "GET")],
)
def test_a_method_that_is_not_served_is_told_with_all_that_are(admin, method, path, allowed):
    answer = admin.request(method, path)
    assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)
    assert allowed in problem(answer).detail
    assert problem(answer).hint


def test_a_misspelt_filter_is_named_with_the_one_meant_and_only_to_holders_of_a_token(api, admin):
    refused = problem(admin.get("/v1/jobs?sate=queued&kidn=x"))
    assert [(error["in"], error["where"]) for error in refused.errors] == [("query", "sate"), ("query", "kidn")]
    assert "Did you mean state?" in refused.errors[0]["hint"]
    with api.client(None) as stranger:
        assert problem(stranger.get("/v1/jobs?sate=queued")).code == "unauthorized"


def test_a_request_id_of_ones_own_comes_back_and_a_bad_one_is_replaced(admin):
    assert admin.get("/v1/health", headers={"X-Request-Id": "trace-1:a.b"}).headers["X-Request-Id"] == "trace-1:a.b"
    assert admin.get("/v1/health", headers={"X-Request-Id": "a b"}).headers["X-Request-Id"] != "a b"


@pytest.mark.parametrize("header", [None, "Bearer kh_unknown", "Bearer", "Basic a2g6a2g=", "kh_x"])
def test_without_a_known_token_nothing_is_told(api, header):
    with api.client(None) as client:
        for path in ("/v1/jobs", "/v1/kinds", "/v1/tokens", "/metrics", "/v1/jobs/1/events", "/v1/jobs/1/summary"):
            answer = client.get(path, headers={"Authorization": header} if header else {})
            assert problem(answer).code == "unauthorized"
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")


def test_an_expired_token_is_refused(api, admin):
    token = admin.post("/v1/tokens", json={"name": "short-lived", "scope": "read", "expires_in_days": 1}).json()
    with psycopg.connect(api.database_url) as conn:
        conn.execute("UPDATE keyhole.api_token SET expires_at = now() WHERE id = %s", (token["id"],))
    answer = httpx.get(f"{api.url}/v1/kinds", headers={"Authorization": f"Bearer {token['token']}"})
    assert problem(answer).code == "unauthorized"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/jobs", {Scope.READ, Scope.SUBMIT, Scope.ADMIN}),
        ("POST", "/v1/sql", {Scope.READ, Scope.SUBMIT, Scope.ADMIN}),
        ("POST", "/v1/jobs", {Scope.SUBMIT, Scope.ADMIN}),
        ("POST", "/v1/jobs/999999999/cancel", {Scope.SUBMIT, Scope.ADMIN}),
        ("POST", "/v1/jobs/999999999/retry", {Scope.SUBMIT, Scope.ADMIN}),
        ("DELETE", "/v1/jobs/999999999", {Scope.ADMIN}),
        ("GET", "/v1/tokens", {Scope.ADMIN}),
        ("POST", "/v1/tokens", {Scope.ADMIN}),
        ("DELETE", "/v1/tokens/999999999", {Scope.ADMIN}),
    ],
)
def test_each_route_asks_for_its_scope(api, method, path, allowed):
    bodies = {"/v1/sql": {"sql": "SELECT 1"}, "/v1/jobs": api.body(), "/v1/tokens": {"name": "scopes"}}
    for scope in Scope:
        with api.client(scope) as client:
            answer = client.request(method, path, json=bodies.get(path) if method == "POST" else None)
        assert (answer.status_code != 403) == (scope in allowed), (scope, answer.text)


def test_the_name_of_a_token_in_use_cannot_be_taken(admin):
    made = admin.post("/v1/tokens", json={"name": "Night  runs", "scope": "read"}).json()
    for name in ("Night  runs", "night runs", " Night runs "):
        refused = problem(admin.post("/v1/tokens", json={"name": name, "scope": "read"}))
        assert (refused.status, refused.code) == (409, "conflict")
        assert f"keyhole token revoke {made['id']}" in refused.hint
    admin.delete(f"/v1/tokens/{made['id']}")
    assert admin.post("/v1/tokens", json={"name": "night runs", "scope": "read"}).status_code == 201


def test_ten_who_ask_for_one_name_at_once_get_one_token(api):
    statuses: list[int] = []

    def create() -> None:
        with api.client() as client:
            statuses.append(client.post("/v1/tokens", json={"name": "contended", "scope": "read"}).status_code)

    threads = [threading.Thread(target=create) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [201] + [409] * 9


def test_a_stored_token_does_not_contain_the_token(api, admin):
    made = admin.post("/v1/tokens", json={"name": "hidden", "scope": "read"}).json()
    with psycopg.connect(api.database_url) as conn:
        [stored] = conn.execute(
            "SELECT to_jsonb(t)::text FROM keyhole.api_token t WHERE id = %s", (made["id"],)
        ).fetchone()
    assert made["token"] not in stored
    assert made["token"] not in json.dumps(admin.get("/v1/tokens").json())


def test_tokens_are_not_logged(api):
    with capture_logs() as logged, api.client(Scope.READ) as client:
        client.get("/v1/jobs", params={"q": "in the query"})
        deadline = time.monotonic() + 10
        while not logged and time.monotonic() < deadline:  # the line is written after the answer is sent
            time.sleep(0.01)
    assert [entry["path"] for entry in logged] == ["/v1/jobs"]
    assert api.tokens[Scope.READ] not in str(logged)


def test_events_come_as_json_where_asked_and_resume_by_header(api, admin):
    job = admin.post("/v1/jobs", json=api.body(force=True)).json()
    stand_in_worker.carry_out(api.database_url, job["id"])
    path = f"/v1/jobs/{job['id']}/events"
    events = admin.get(path, headers={"Accept": "application/json"}).json()
    assert [event["type"] for event in events][-1] == "succeeded"
    rest = admin.get(path, headers={"Accept": "application/json", "Last-Event-ID": str(events[2]["id"])}).json()
    assert rest == events[3:]
    streamed = admin.get(path, headers={"Last-Event-ID": str(events[2]["id"])}).text
    assert [int(line[4:]) for line in streamed.splitlines() if line.startswith("id: ")] == [e["id"] for e in events[3:]]


def test_a_hundred_streams_leave_the_api_answering(api, admin):
    job = admin.post("/v1/jobs", json=api.body(force=True)).json()
    ended = []

    def follow() -> None:
        with api.client(Scope.READ) as client, client.stream("GET", f"/v1/jobs/{job['id']}/events") as answer:
            ended.append(sum(line.startswith("event: ") for line in answer.iter_lines()))

    threads = [threading.Thread(target=follow) for _ in range(100)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    assert admin.get("/v1/jobs").status_code == 200
    admin.post(f"/v1/jobs/{job['id']}/cancel")
    for thread in threads:
        thread.join(60)
    assert ended == [2] * 100  # queued and cancelled, to each


def test_a_table_as_csv_spells_what_is_not_finite(api, admin):
    job = admin.post("/v1/jobs", json=api.body(force=True)).json()
    stand_in_worker.carry_out(api.database_url, job["id"])
    query = {"format": "csv", "layer": 0, "head": 1, "column": ["query", "log10_d_c"]}
    lines = admin.get(f"/v1/jobs/{job['id']}/tables/gradient_scale", params=query).text.splitlines()
    assert lines[:2] == ["query,log10_d_c", "0,Infinity"]
    assert len(lines) == 1 + 4 * stand_in_worker.QUERIES


def test_readiness_tells_each_part(admin):
    answer = admin.get("/v1/health/ready")
    told = answer.json()
    assert (answer.status_code, told["database"]["ok"], told["schema_version"]["ok"]) == (200, True, True)
    assert told["broker"]["ok"] is False


def test_metrics_count_jobs_without_naming_them(api, admin):
    from prometheus_client.parser import text_string_to_metric_families

    before = _jobs_queued(admin, text_string_to_metric_families)
    admin.post("/v1/jobs", json=api.body(force=True))
    assert _jobs_queued(admin, text_string_to_metric_families) == before + 1
    for family in text_string_to_metric_families(admin.get("/metrics").text):
        for sample in family.samples:
            assert not {"job", "job_id", "id"} & sample.labels.keys()


def _jobs_queued(client, parse) -> float:
    families = {family.name: family for family in parse(client.get("/metrics").text)}
    [value] = [
        sample.value
        for sample in families["keyhole_jobs"].samples
        if sample.labels == {"kind": "gradient_scale", "state": "queued"}
    ]
    return value


def test_the_documentation_needs_no_other_server(admin):
    page = admin.get("/docs").text
    assert "https://" not in page.replace("https://fastapi", "")
    for asset in ("swagger-ui-bundle.js", "swagger-ui.css"):
        assert f"docs/{asset}" in page
        assert len(admin.get(f"/docs/{asset}").content) > 50_000


def test_a_database_that_was_not_migrated_is_named_as_such(database, tmp_path):
    with database.connect() as conn:
        conn.execute("DROP SCHEMA keyhole CASCADE")
    with served(Settings(home=tmp_path, database_url=database.owner_url)) as url:
        told = problem(httpx.get(f"{url}/v1/jobs", headers={"Authorization": "Bearer kh_any"}, timeout=20))
    assert told.status == 503
    assert "keyhole migrate" in told.hint


def test_without_a_database_requests_are_503_and_health_answers(tmp_path):
    settings = Settings(home=tmp_path, database_url="postgresql://nobody@127.0.0.1:9/none")
    with served(settings) as url:
        assert httpx.get(f"{url}/v1/health").status_code == 200
        assert httpx.get(f"{url}/v1/health/ready", timeout=20).status_code == 503
        answer = httpx.get(f"{url}/v1/jobs", headers={"Authorization": "Bearer kh_x"}, timeout=20)
    assert problem(answer).code == "unavailable"
    assert answer.headers["Retry-After"]
