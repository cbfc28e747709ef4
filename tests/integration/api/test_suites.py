"""Suites by HTTP and by the client: several probes of one model or several, all of them or none."""

from pathlib import Path

import pytest

from services.client import Keyhole, KeyholeError
from services.contracts.states import Scope
from tests.integration.api.conftest import write_model

SMALL = {"sequences": 2, "length": 40}


def body(api, **changes: object) -> dict[str, object]:
    probes = [
        {"kind": "gradient_scale", "parameters": SMALL},
        {"kind": "gradient_scale", "parameters": {**SMALL, "credit": "own_token"}},
    ]
    return {"probes": probes, "models": [api.model], "dataset": api.dataset} | changes


def test_a_suite_makes_one_job_of_each_probe(api, admin):
    answer = admin.post("/v1/suites", json=body(api, name="two credits"))
    assert answer.status_code == 202, answer.text
    suite = answer.json()
    assert [job["parameters"]["credit"] for job in suite["members"]] == ["sequence", "own_token"]
    assert {job["label"] for job in suite["members"]} == {"two credits"}
    assert (suite["models"], suite["jobs_by_state"], suite["shards"]) == (1, {"queued": 2}, 4)
    assert admin.get(f"/v1/suites/{suite['id']}").json() == suite


def test_jobs_that_stand_become_part_of_the_suite(api, admin):
    first = admin.post("/v1/suites", json=body(api)).json()
    second = admin.post("/v1/suites", json=body(api)).json()
    assert [job["id"] for job in second["members"]] == [job["id"] for job in first["members"]]
    assert all(job["reused"] for job in second["members"])
    cancelled = admin.post(f"/v1/suites/{second['id']}/cancel").json()
    assert cancelled["jobs_by_state"] == {"queued": 2}, "jobs of another suite must go on"
    assert admin.post("/v1/suites", json=body(api, force=True)).json()["members"][0]["reused"] is False


def test_the_same_job_is_part_of_a_suite_once(api, admin):
    folder, name = api.model.rsplit("/", 1)
    probe = {"kind": "gradient_scale", "parameters": SMALL}
    suite = admin.post(
        "/v1/suites", json=body(api, probes=[probe, probe], models=[api.model, f"{folder}/./{name}"], force=True)
    ).json()
    assert suite["jobs_by_state"] == {"queued": 1}


def test_cancelling_a_suite_cancels_its_own_jobs(api, admin):
    suite = admin.post("/v1/suites", json=body(api, force=True)).json()
    assert admin.post(f"/v1/suites/{suite['id']}/cancel").json()["jobs_by_state"] == {"cancelled": 2}


def test_values_for_all_probes_and_for_one_kind(api, admin):
    changes = {"length": 48, "gradient_scale": {"queries": {"step": 7}}}
    suite = admin.post("/v1/suites", json=body(api, parameters=changes)).json()
    for job in suite["members"]:
        assert (job["parameters"]["length"], job["parameters"]["queries"]["step"]) == (48, 7)
        assert job["parameters"]["sequences"] == 2


def test_a_folder_of_checkpoints_is_a_series_in_the_order_of_its_numbers(api, admin):
    folder = api.model.removeprefix("path:").rsplit("/", 1)[0] + "/run"
    for step in (100, 20, 3):
        write_model_of_step(folder, step)
    (Path(folder) / "10²").mkdir()  # no model, and a digit that is no decimal
    suite = admin.post("/v1/suites", json=body(api, models=[f"path:{folder}/*"])).json()
    steps = [job["model"].rsplit("-", 1)[1] for job in suite["members"]]
    assert steps == ["3", "20", "100"] * 2
    assert suite["models"] == 3


def write_model_of_step(folder: str, step: int) -> None:
    write_model(Path(folder) / f"step-{step}", rope_theta=float(step))


@pytest.mark.parametrize(
    ("changes", "status", "told"),
    [
        ({"probes": []}, 422, "preset or a list of probes"),
        ({"preset": "article/figure-1"}, 422, "preset or a list of probes"),
        ({"models": []}, 422, "needs models"),
        ({"dataset": None}, 422, "needs models and a dataset"),
        ({"probes": [{"kind": "gradient_scal"}]}, 422, "gradient_scale"),
        ({"probes": [{"kind": "gradient_scale", "parameters": {"lenth": 3}}]}, 422, "lenth"),
        ({"parameters": {"lenth": 3}}, 422, "lenth"),
        ({"parameters": {"gradient_scale": 3}}, 422, "gradient_scale.length"),
        ({"parameters": {"length": 4000}}, 422, "128"),
        ({"models": ["path:/etc/*"]}, 422, "KEYHOLE_MODEL_ROOTS"),
        ({"probes": [{"kind": "gradient_scale", "model": "path:run/*"}]}, 422, "series"),
        ({"probes": [{"kind": "gradient_scale", "model": ""}]}, 422, "model"),
        ({"probes": [{"kind": "calibration", "parameters": {"teacher": "path:run/*"}}]}, 422, "series"),
        (
            {"probes": [{"kind": "pattern_stability", "parameters": {"checkpoints": [{"model": "hf:a/b@*"}]}}]},
            422,
            "checkpoints 0 and 1",
        ),
    ],
)
def test_what_is_wrong_with_one_job_refuses_all(api, admin, changes, status, told):
    before = admin.get("/v1/suites").json()["items"], admin.get("/v1/jobs").json()["items"][:1]
    answer = admin.post("/v1/suites", json=body(api, **changes))
    assert answer.status_code == status, answer.text
    assert told in answer.text
    assert (admin.get("/v1/suites").json()["items"], admin.get("/v1/jobs").json()["items"][:1]) == before


def test_an_unknown_preset_or_suite_is_told_what_there_is(api, admin):
    answer = admin.post("/v1/suites", json={"preset": "article/figure-9"})
    assert answer.status_code == 404
    assert "article/figure-1" in answer.json()["hint"]
    assert admin.get("/v1/suites/999999").status_code == 404


def test_readers_may_look_and_not_submit(api):
    with api.client(Scope.READ) as reader:
        assert reader.get("/v1/presets").status_code == 200
        assert reader.post("/v1/suites", json=body(api)).status_code == 403


def test_the_client_submits_lists_and_finds_jobs(api):
    with Keyhole(api.url, api.tokens[Scope.ADMIN]) as keyhole:
        suite = keyhole.submit_suite(
            model=api.model, dataset=api.dataset, probes=["gradient_scale"], label="from Python", **SMALL
        )
        assert suite.job("gradient_scale").detail.parameters["length"] == 40
        with pytest.raises(KeyholeError, match="0 jobs of kind 'ratchet'"):
            suite.job("ratchet")
        assert [each.id for each in keyhole.suites(text="from python")] == [suite.id]
        assert keyhole.suite(suite.id).detail == suite.detail


def test_every_preset_can_be_submitted_but_for_its_sources(api, admin):
    """With models and data that exist here, and sequences short enough for them."""
    folder = api.model.removeprefix("path:").rsplit("/", 1)[0] + "/pair"
    for step in (1, 2):
        write_model_of_step(folder, step)
    for preset in admin.get("/v1/presets").json():
        probes = [probe for each in (preset, *preset["stages"]) for probe in each["probes"]]
        kinds = {probe["kind"] for probe in probes}
        changes: dict[str, object] = {"length": 64}
        if kinds - {"training"}:
            changes |= {"sequences": 1, "queries": {"start": 8}}
        if "calibration" in kinds:
            changes["calibration"] = {"teacher": api.model}
        if preset["sweep"] or "training" in kinds:
            changes["data"] = {"validation_dataset": None, "tokenizer": "auto"}  # the data here are text
        compares = kinds == {"pattern_stability"}
        models = [f"path:{folder}/*"] if compares else [api.model]
        answer = admin.post(
            "/v1/suites",
            json={"preset": preset["name"], "models": models, "dataset": api.dataset, "parameters": changes},
        )
        assert answer.status_code == 202, (preset["name"], answer.text)
        suite = answer.json()
        swept = admin.get(f"/v1/sweeps/{suite['sweep_id']}").json()["runs"] if preset["sweep"] else 0
        assert len(suite["members"]) == len(preset["probes"]) + swept
        assert len(suite["stages"]) == len(preset["stages"])
        if compares:
            (job,) = answer.json()["members"]
            assert [each["step"] for each in job["parameters"]["checkpoints"]] == [2]
