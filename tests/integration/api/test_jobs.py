"""POST and GET /v1/jobs on a real database."""

import threading

import httpx
import psycopg
import pytest

from services.contracts.states import Scope


def ids(page: dict) -> list[int]:
    return [item["id"] for item in page["items"]]


def test_a_submission_is_accepted_with_its_location_and_shards(api, admin):
    answer = admin.post("/v1/jobs", json=api.body(label="first"))
    assert answer.status_code == 202, answer.text
    job = answer.json()
    assert answer.headers["Location"] == f"/v1/jobs/{job['id']}"
    assert (job["state"], job["progress"]["shards"], job["reused"]) == ("queued", 4, False)
    with psycopg.connect(api.database_url) as conn:
        shards = conn.execute(
            "SELECT first_sequence, sequences FROM keyhole.shard WHERE job_id = %s ORDER BY index", (job["id"],)
        ).fetchall()
    assert shards == [(0, 1), (1, 1), (2, 1), (3, 1)]


def test_without_a_broker_the_job_waits_in_the_database(api, admin):
    job = admin.post("/v1/jobs", json=api.body(force=True)).json()
    assert admin.get(f"/v1/jobs/{job['id']}").json()["state"] == "queued"


def test_the_same_submission_is_answered_by_the_job_that_stands(api, admin):
    body = api.body(parameters={"sequences": 1, "length": 40})
    first = admin.post("/v1/jobs", json=body)
    spelled_out = api.body(parameters={"length": 40, "sequences": 1, "batch": 1, "credit": "sequence"}, priority=3)
    second = admin.post("/v1/jobs", json=spelled_out)
    assert (first.status_code, second.status_code) == (202, 200)
    assert second.json()["id"] == first.json()["id"]
    assert second.json()["reused"] is True
    forced = admin.post("/v1/jobs", json=body | {"force": True})
    assert forced.status_code == 202
    assert forced.json()["id"] != first.json()["id"]


def test_different_parameters_make_another_job(api, admin):
    one = admin.post("/v1/jobs", json=api.body(parameters={"sequences": 1, "length": 41})).json()
    other = admin.post("/v1/jobs", json=api.body(parameters={"sequences": 1, "length": 42})).json()
    assert one["id"] != other["id"]


def test_a_failed_or_cancelled_job_is_not_reused(api, admin):
    body = api.body(parameters={"sequences": 1, "length": 43})
    first = admin.post("/v1/jobs", json=body).json()
    admin.post(f"/v1/jobs/{first['id']}/cancel")
    assert admin.post("/v1/jobs", json=body).status_code == 202


def test_twenty_equal_submissions_at_once_make_one_job(api):
    body = api.body(parameters={"sequences": 2, "length": 44})
    answers: list[httpx.Response] = []

    def submit() -> None:
        with api.client(Scope.SUBMIT) as client:
            answers.append(client.post("/v1/jobs", json=body))

    threads = [threading.Thread(target=submit) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [202]
    assert len({answer.json()["id"] for answer in answers}) == 1


def test_an_idempotency_key_repeats_its_job_even_with_force(api, admin):
    body = api.body(force=True, parameters={"sequences": 1, "length": 45})
    key = {"Idempotency-Key": "a-key-of-mine"}
    first, second = (admin.post("/v1/jobs", json=body, headers=key) for _ in range(2))
    assert (first.status_code, second.status_code) == (202, 200)
    assert first.json()["id"] == second.json()["id"]


def test_an_idempotency_key_with_another_body_is_refused(api, admin):
    key = {"Idempotency-Key": "used-twice"}
    admin.post("/v1/jobs", json=api.body(), headers=key)
    answer = admin.post("/v1/jobs", json=api.body(label="other"), headers=key)
    assert answer.status_code == 409
    assert answer.json()["code"] == "idempotency_mismatch"


def test_idempotency_keys_of_two_tokens_are_apart(api):
    key = {"Idempotency-Key": "shared-name"}
    body = api.body(force=True)
    with api.client(Scope.ADMIN) as one, api.client(Scope.SUBMIT) as other:
        first = one.post("/v1/jobs", json=body, headers=key).json()
        second = other.post("/v1/jobs", json=body, headers=key).json()
    assert first["id"] != second["id"]


def test_an_unknown_kind_lists_the_kinds(api, admin):
    answer = admin.post("/v1/jobs", json=api.body(kind="gradient_scales"))
    assert answer.status_code == 422
    assert answer.json()["code"] == "unknown_kind"
    assert "Did you mean gradient_scale?" in answer.json()["hint"]


def test_a_misspelt_parameter_is_named_with_the_one_meant(api, admin):
    answer = admin.post("/v1/jobs", json=api.body(parameters={"sequnces": 4}))
    assert answer.status_code == 422
    [error] = answer.json()["errors"]
    assert error["where"] == "parameters.sequnces"
    assert "Did you mean sequences?" in error["hint"]


def test_a_misspelt_field_of_a_nested_parameter_is_named(api, admin):
    answer = admin.post("/v1/jobs", json=api.body(parameters={"queries": {"stp": 4}}))
    [error] = answer.json()["errors"]
    assert error["where"] == "parameters.queries.stp"
    assert "Did you mean" in error["hint"]


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"model": "nowhere"}, 422, "invalid_source"),
        ({"model": "path:/etc"}, 422, "invalid_source"),
        ({"dataset": "file:absent.txt"}, 422, "dataset_not_found"),
        ({"parameters": {"length": 129}}, 422, "invalid_request"),  # the model has 128 positions
        ({"parameters": {"sequences": 0}}, 422, "invalid_request"),
        ({"label": "a\0b"}, 422, "invalid_request"),
        ({"priority": 10**30}, 422, "invalid_request"),
        ({"label": "a\x9b31m"}, 422, "invalid_request"),
        ({"label": "a\u202eb"}, 422, "invalid_request"),
        ({"model": "path:a\u202eb"}, 422, "invalid_source"),
        ({"dataset": "file:a\x9bb"}, 422, "invalid_source"),
        ({"priority": True}, 422, "invalid_request"),
        ({"priority": "1"}, 422, "invalid_request"),
        ({"force": "yes"}, 422, "invalid_request"),
        ({"force": 1}, 422, "invalid_request"),
        ({"time_limit_s": 1.5}, 422, "invalid_request"),
        ({"parameters": {"sequences": True}}, 422, "invalid_request"),
        ({"parameters": {"queries": {"step": "4"}}}, 422, "invalid_request"),
    ],
)
def test_a_wrong_submission_is_refused_with_its_code(api, admin, changes, status, code):
    answer = admin.post("/v1/jobs", json=api.body(**changes))
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.json()["hint"]


def test_pages_cover_the_listing_without_gaps_or_repeats(api, admin):
    made = [admin.post("/v1/jobs", json=api.body(force=True, label="paged")).json()["id"] for _ in range(7)]
    found: list[int] = []
    query = {"label": "PAGED", "limit": 3}
    while True:
        page = admin.get("/v1/jobs", params=query).json()
        found += ids(page)
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
        if len(found) == 3:  # jobs that come meanwhile shift nothing
            admin.post("/v1/jobs", json=api.body(force=True, label="paged"))
    assert found == sorted(made, reverse=True)


def test_filters_select(api, admin):
    job = admin.post("/v1/jobs", json=api.body(force=True, label="to be filtered")).json()
    admin.post(f"/v1/jobs/{job['id']}/cancel")
    for query in (
        {"q": "BE FILT"},
        {"label": "to be filtered", "state": ["cancelled", "failed"]},
        {
            "q": "be filtered",
            "kind": "gradient_scale",
            "submitted_by": "test-admin",
            "model": "tiny",
            "dataset": "text",
        },
        {"q": "be filtered", "created_after": "2020-01-01T00:00:00Z"},
    ):
        assert ids(admin.get("/v1/jobs", params=query).json()) == [job["id"]], query
    for query in (
        {"q": "be filtered", "state": "queued"},
        {"q": "be filtered", "submitted_by": "nobody"},
        {"q": "be filtered", "created_before": "2020-01-01T00:00:00Z"},
        {"q": "%"},
    ):
        assert ids(admin.get("/v1/jobs", params=query).json()) == [], query


def test_a_made_up_cursor_is_refused(admin):
    for cursor in ("zzz", "é", "MTIz"):
        answer = admin.get("/v1/jobs", params={"cursor": cursor})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


def test_an_unchanged_job_answers_304_and_a_changed_one_does_not(api, admin):
    job = admin.post("/v1/jobs", json=api.body(force=True)).json()
    etag = admin.get(f"/v1/jobs/{job['id']}").headers["ETag"]
    unchanged = admin.get(f"/v1/jobs/{job['id']}", headers={"If-None-Match": f'"other", {etag}'})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    for matching in ("*", f"W/{etag}", f'W/"other", W/{etag}'):
        assert admin.get(f"/v1/jobs/{job['id']}", headers={"If-None-Match": matching}).status_code == 304
    for other in ('"other"', etag.strip('"'), f'"W/{etag[1:]}'):
        assert admin.get(f"/v1/jobs/{job['id']}", headers={"If-None-Match": other}).status_code == 200
    admin.post(f"/v1/jobs/{job['id']}/cancel")
    changed = admin.get(f"/v1/jobs/{job['id']}", headers={"If-None-Match": etag})
    assert (changed.status_code, changed.json()["state"]) == (200, "cancelled")


def test_cancel_retry_and_delete_follow_the_states(api, admin):
    job = admin.post("/v1/jobs", json=api.body(force=True)).json()
    path = f"/v1/jobs/{job['id']}"
    assert admin.post(f"{path}/retry").status_code == 409
    assert admin.delete(path).status_code == 409
    assert admin.post(f"{path}/cancel").json()["state"] == "cancelled"
    assert admin.post(f"{path}/cancel").status_code == 409
    again = admin.post(f"{path}/retry")
    assert (again.status_code, again.json()["state"]) == (202, "queued")
    admin.post(f"{path}/cancel")
    assert admin.delete(path).status_code == 204
    assert admin.get(path).json()["code"] == "not_found"


def test_the_queue_position_follows_priority(api, admin):
    low = admin.post("/v1/jobs", json=api.body(force=True, priority=-100)).json()
    high = admin.post("/v1/jobs", json=api.body(force=True, priority=100)).json()
    assert high["progress"]["queue_position"] == 1
    assert admin.get(f"/v1/jobs/{low['id']}").json()["progress"]["queue_position"] > 1
