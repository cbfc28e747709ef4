"""What finished jobs are called where they are compared."""

from datetime import UTC, datetime
from typing import Any

from dashboard.formats import NOTHING
from dashboard.job_names import differences, picker_names, titles
from dashboard.queries.jobs import FinishedJob
from services.contracts.kinds import KINDS

NOW = datetime(2026, 9, 4, tzinfo=UTC)
MODEL = "path:/tmp/newuser/home/models/tinyllama"


def finished(job_id: int, *, label: str | None = None, parameters: dict[str, Any] | None = None, **of: Any):
    row: dict[str, Any] = {
        "kind": "gradient_scale",
        "state": "succeeded",
        "phase": "done",
        "model": MODEL,
        "dataset": "tokens:/tmp/newuser/home/tokens.npy",
        "shards": 1,
        "shards_done": 1,
        "rows": 96,
        "created_at": NOW,
        "started_at": NOW,
        "finished_at": NOW,
        "duration_s": 1.0,
        "error_code": None,
        "model_identity": "sha256:0123456789",
        "dataset_identity": "sha256:abcdef0123",
        "device": "cpu",
    }
    row |= of
    asked = KINDS[row["kind"]].parameters(**(parameters or {})).model_dump()
    return FinishedJob(job_id=job_id, label=label, parameters=asked, **row)


def test_jobs_that_differ_in_one_parameter_are_titled_by_it() -> None:
    for parameters, told in [
        ({"credit": "own_token"}, ("credit sequence", "credit own_token")),
        ({"dtype": "bfloat16"}, ("float32", "bfloat16")),
        ({"length": 2048}, ("length 1,024", "length 2,048")),
        ({"sequences": 4}, ("16 sequences", "4 sequences")),
        ({"sequences": 1}, ("16 sequences", "1 sequence")),
        ({"queries": {"step": 8, "stop": 64}}, ("queries 32 step 4", "queries 32 to 64 step 8")),
    ]:
        jobs = [finished(1), finished(2, parameters=parameters)]
        assert titles(jobs) == {1: f"Job 1 · {told[0]}", 2: f"Job 2 · {told[1]}"}
        names = picker_names(jobs)
        assert told[0] in names[1] and told[1] in names[2]


def test_jobs_of_different_models_and_data_sets_are_titled_by_them() -> None:
    jobs = [finished(1), finished(2, model="builtin:a"), finished(3, dataset="builtin:b")]
    assert list(differences(jobs)) == ["Model", "Data set"]
    assert titles(jobs)[2] == "Job 2 · builtin:a · tokens:/tmp/newuser/home/tokens.npy"


def test_other_contents_under_the_same_path_and_another_device_are_told() -> None:
    jobs = [finished(1), finished(2, model_identity="sha256:0123456xyz", device="NVIDIA H200")]
    assert titles(jobs)[2] == "Job 2 · model …3456xyz · on NVIDIA H200"


def test_a_job_on_its_own_is_titled_by_its_label_or_else_its_model() -> None:
    assert titles([finished(1, label="first\nlook")]) == {1: "Job 1 · first look"}
    assert titles([finished(1)]) == {1: f"Job 1 · {MODEL}"}


def test_equal_jobs_are_told_apart_by_label_and_number() -> None:
    assert titles([finished(1, label="a"), finished(2)]) == {1: "Job 1 · a", 2: f"Job 2 · {MODEL}"}
    assert len(set(picker_names([finished(1), finished(2)]).values())) == 2


def test_a_parameter_that_is_not_given_is_left_out_of_names_unless_that_means_all() -> None:
    anchors = {"layer": 1, "head": 0, "sequence": 0, "query": 40, "first_key": 0, "second_key": 2}
    for kind, parameters, told in [
        ("calibration", {"anchors": [anchors]}, (NOTHING, "anchors layer 1")),
        ("shared_routing", {"layers": [0, 2]}, ("all layers", "layers 0, 2")),
        ("jacobian_spectrum", {"sites": [{"layer": 2, "head": 0}]}, ("every head", "sites layer 2 head 0")),
    ]:
        jobs = [finished(1, label="a", kind=kind), finished(2, label="a", kind=kind, parameters=parameters)]
        (values,) = differences(jobs).values()
        assert values[0] == told[0] and values[1].startswith(told[1])
        assert titles(jobs)[1] == ("Job 1 · a" if told[0] == NOTHING else f"Job 1 · a · {told[0]}")
        assert NOTHING not in picker_names(jobs)[1] and "none" not in "".join(picker_names(jobs).values()).lower()
