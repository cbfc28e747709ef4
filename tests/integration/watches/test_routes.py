"""Watches and alerts by HTTP, by the client and by the command."""

import csv
import io
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from db.repositories import api_tokens, runs
from db.repositories.runs import Metric
from services.api.watching import judge_all
from services.client import Keyhole, KeyholeError
from services.contracts.states import JobState, Scope
from tests.integration.new_runs import trained_run
from tests.integration.watches.conftest import SMALL

KEYHOLE = str(Path(sys.executable).with_name("keyhole"))
PROBE = {"kind": "attention_profile", "parameters": SMALL}


@pytest.fixture
def run_id(watched):
    return trained_run(watched.conn, state=JobState.RUNNING, dataset=watched.dataset, losses=[(0, 7.0)], steps=1000)


@pytest.fixture
def raised(watched, run_id):
    """A watch with alerts: entropy of four heads at step 10, and the loss at step 20, which is not finite."""
    watch = watched.create(
        target=f"run:{run_id}", rules=["training.entropy_nats head below 0.5", "loss_nats above 10"], name="mine"
    )
    rows = [Metric(10, "entropy_nats", 0.1 * (1 + head), layer, head) for layer in (0, 1) for head in (0, 1)]
    runs.write(watched.conn, run_id, [*rows, Metric(20, "loss_nats", float("inf"))])
    watched.look(judge_all)
    return watch


def client_of(watched) -> Keyhole:
    token = watched.http.headers["Authorization"].removeprefix("Bearer ")
    return Keyhole(str(watched.http.base_url), token)


def test_alerts_are_listed_newest_first_by_page_and_filtered(watched, run_id, raised):
    everything = watched.http.get("/v1/alerts", params={"limit": 500}).json()["items"]
    assert [each["id"] for each in everything] == [5, 4, 3, 2, 1]
    first = watched.http.get("/v1/alerts", params={"limit": 2}).json()
    second = watched.http.get("/v1/alerts", params={"limit": 500, "cursor": first["next"]}).json()
    assert first["items"] + second["items"] == everything
    assert second["next"] is None

    def ids(**filters):
        return [each["id"] for each in watched.http.get("/v1/alerts", params=filters).json()["items"]]

    assert ids(watch=raised["id"], metric="entropy_nats", layer=1) == [4, 2], "the worst heads of a step come first"
    assert ids(head=1) == [4, 3]
    assert ids(run=run_id + 1) == []
    assert ids(since="2999-01-01T00:00:00Z") == []
    assert ids(after=2) == [3, 4, 5]
    assert ids(acknowledged="false") == [5, 4, 3, 2, 1]
    assert everything[0]["value"] == "Infinity"


def test_alerts_as_csv_have_every_column_and_row(watched, raised):
    answer = watched.http.get("/v1/alerts", params={"format": "csv"})
    assert answer.headers["Content-Type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    listed = watched.http.get("/v1/alerts", params={"limit": 500}).json()["items"]
    assert list(rows[0]) == list(listed[0])
    assert [(row["id"], row["value"], row["message"]) for row in rows] == [
        (str(each["id"]), str(each["value"]), each["message"]) for each in listed
    ]


def test_acknowledged_alerts_tell_by_whom_and_are_counted_once(watched, raised):
    assert watched.http.post("/v1/alerts/acknowledge", json={"alerts": [1, 2, 99]}).json() == {"acknowledged": 2}
    assert watched.http.post("/v1/alerts/acknowledge", json={"watch": raised["id"]}).json() == {"acknowledged": 3}
    assert watched.watch(raised["id"])["unacknowledged"] == 0
    (one,) = [each for each in watched.alerts() if each["id"] == 1]
    assert (one["acknowledged_by"], bool(one["acknowledged_at"])) == ("submitter", True)
    assert watched.http.post("/v1/alerts/acknowledge", json={"alerts": [1]}).json() == {"acknowledged": 0}


def test_readers_may_look_and_change_nothing(watched, run_id, raised):
    for path in ("/v1/watches", f"/v1/watches/{raised['id']}", "/v1/alerts", "/v1/rules"):
        assert watched.reader.get(path).status_code == 200
    refused = [
        watched.reader.post("/v1/watches", json={"target": f"run:{run_id}", "rules": ["loss jump 1"]}),
        watched.reader.post(f"/v1/watches/{raised['id']}/stop"),
        watched.reader.post(f"/v1/watches/{raised['id']}/resume"),
        watched.reader.delete(f"/v1/watches/{raised['id']}"),
        watched.reader.post("/v1/alerts/acknowledge", json={"watch": raised["id"]}),
    ]
    assert [each.status_code for each in refused] == [403] * 5


def test_a_deleted_watch_takes_its_alerts_along(watched, raised):
    assert watched.http.delete(f"/v1/watches/{raised['id']}").status_code == 204
    assert watched.http.get(f"/v1/watches/{raised['id']}").status_code == 404
    assert not watched.alerts()
    assert watched.http.delete(f"/v1/watches/{raised['id']}").status_code == 404


def test_watches_are_listed_and_found(watched, run_id, raised):
    other = watched.create(target=f"run:{run_id}", probes=[PROBE], name="probes")
    assert [each["id"] for each in watched.http.get("/v1/watches").json()["items"]] == [other["id"], raised["id"]]
    assert [each["id"] for each in watched.http.get("/v1/watches", params={"q": "MINE"}).json()["items"]] == [
        raised["id"]
    ]
    watched.http.post(f"/v1/watches/{other['id']}/stop")
    listed = watched.http.get("/v1/watches", params={"active": "false"}).json()["items"]
    assert [(each["id"], each["ended"]) for each in listed] == [(other["id"], "stopped")]


def test_what_can_be_watched_is_listed_with_its_grammar(watched):
    guide = watched.http.get("/v1/rules").json()
    found = {(each["of"], each["metric"]): each for each in guide["metrics"]}
    assert found["attention_profile", "entropy_nats"]["levels"] == ["head", "layer", "model"]
    assert found["training", "loss_nats"]["levels"] == ["model"]
    assert found["calibration", "r"]["meaning"]
    assert "loss jump" in guide["grammar"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "needs probes or a preset"),
        ({"rules": ["entropi below 1"]}, "there is no metric 'entropi'"),
        ({"rules": ["entropy_nats heads below 1"]}, "METRIC [head|layer|model]"),
        ({"rules": [{"metric": "loss_nats"}]}, "either below or above"),
        ({"rules": [{"type": "loss_jmp", "above": 1}]}, "loss_jump"),
        ({"rules": ["ratchet.gain_top below 0"], "probes": [PROBE]}, "rule 0 needs the probe ratchet"),
        ({"rules": ["gain_top below 0"], "probes": [PROBE]}, "rules.0 cannot be met"),
        ({"rules": ["sigma of product above 9"], "probes": [PROBE]}, "needs the probe entropy_bound"),
        ({"probes": [{"kind": "attention_profil"}]}, "attention_profil"),
        ({"probes": [{"kind": "training"}]}, "A watch submits probes; training is none."),
        ({"rules": ["loss_nats\0 above 1"]}, "loss_nats\\x00 above 1"),
        ({"probes": [{"kind": "attention_profile", "parameters": {"lenth": 3}}]}, "lenth"),
        ({"probes": [{"kind": "pattern_stability", "parameters": SMALL}]}, "compares"),
        ({"probes": [PROBE], "parameters": {"lenth": 3}}, "lenth"),
        ({"probes": [PROBE], "dataset": "file:/etc/passwd"}, "KEYHOLE_DATA_ROOTS"),
        ({"probes": [PROBE], "preset": "article/table-5"}, "either a preset or probes"),
        ({"rules": ["loss jump 1"], "until": "2030-01-01T00:00:00"}, "time zone"),
        ({"rules": ["loss jump 1"], "until": "2001-01-01T00:00:00Z"}, "until is 2001-01-01T00:00:00+00:00, which has"),
        ({"rules": ["loss jump 1"], "name": "a\tb"}, "control characters"),
        ({"rules": ["loss jump 1"], "poll_s": 0.1}, "poll_s"),
        ({"rules": ["loss jump 1"] * 51}, "rules"),
    ],
)
def test_what_is_wrong_with_a_watch_is_told_at_its_submission(watched, run_id, changes, told):
    answer = watched.create(422, **({"target": f"run:{run_id}"} | changes))
    assert told in f"{answer['detail']} {answer['hint']}"
    assert not watched.http.get("/v1/watches").json()["items"]


def test_a_preset_gives_probes_and_data(watched, run_id):
    watch = watched.create(
        target=f"run:{run_id}", preset="account/entropy-collapse", dataset=watched.dataset,
        rules=["entropy within 0.1 of bound"], parameters={"length": 64, "sequences": 2},
    )  # fmt: skip
    assert watch["probes"] == ["entropy_bound"]
    assert watch["rules"][0]["text"] == "entropy within 0.1 nats of bound head"


def test_a_preset_that_trains_is_no_probe_of_checkpoints(watched, run_id):
    from services.contracts.kinds import KINDS
    from services.presets import presets

    training = [
        each.name
        for each in presets().values()
        if each.stages or each.sweep or any(KINDS[item.kind].queue == "training" for item in each.probes)
    ]
    assert training
    for name in training:
        answer = watched.create(422, target=f"run:{run_id}", preset=name, dataset=watched.dataset)
        assert "trains or has several stages" in answer["detail"]


def test_the_client_watches_follows_and_acknowledges(watched, run_id):
    with client_of(watched) as keyhole:
        watch = keyhole.watch(f"run:{run_id}", rules=["loss_nats above 10"], name="from python")
        assert "looks" in repr(watch)
        followed = keyhole.follow_alerts(after=0, watch=watch.id)
        runs.write(watched.conn, run_id, [Metric(20, "loss_nats", 11.0)])
        watched.look(judge_all)
        alert = next(followed)
        assert (alert.step, alert.value, alert.run_id) == (20, 11.0, run_id)
        assert [each.id for each in watch.alerts()] == [alert.id]
        assert keyhole.acknowledge([alert.id]) == 1
        assert not list(keyhole.alerts(acknowledged=False))
        assert not watch.stop().detail.active
        assert watch.resume().detail.active
        assert [each.id for each in keyhole.watches(active=True, run=run_id)] == [watch.id]
        assert keyhole.rules().metrics
        watch.delete()
        with pytest.raises(KeyholeError, match="There is no watch"):
            keyhole.watch_of(watch.id)


@pytest.fixture
def keyhole(watched, tmp_path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KEYHOLE_")}
    with watched.conn.transaction():
        _, token = api_tokens.create(watched.conn, "command", Scope.SUBMIT)
    told = {"KEYHOLE_API_URL": str(watched.http.base_url), "KEYHOLE_TOKEN": token, "KEYHOLE_HOME": str(tmp_path)}

    def run(*arguments: str, expect: int = 0) -> subprocess.CompletedProcess:
        done = subprocess.run(
            [KEYHOLE, *arguments], env=kept | told, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == expect, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    run.environment = kept | told  # type: ignore[attr-defined]  # for the test that needs the process
    return run


def test_the_command_makes_shows_stops_and_deletes_a_watch(watched, run_id, keyhole):
    rules = ["--rule", "entropy_nats head below 0.5", "--rule", '{"type": "loss_jump", "above": 1}']
    probe = ["--probe", "attention_profile", "--set", "length=64"]
    made = keyhole("watch", f"run:{run_id}", *probe, *rules, "--name", "cli")
    assert "keyhole watch stop 1" in made.stderr
    shown = keyhole("watch", "show", "1").stdout
    assert "attention_profile.entropy_nats head below 0.5" in shown
    assert "training loss jump 1 nats" in shown
    assert "ended: stopped" in keyhole("watch", "stop", "1").stdout
    assert "cli" in keyhole("watches").stdout
    assert json.loads(keyhole("watches", "--active", "--json").stdout) == []
    assert json.loads(keyhole("watch", "resume", "1", "--json").stdout)["active"]
    assert "deleted" in keyhole("watch", "delete", "1").stdout


def test_the_command_tells_the_grammar_of_a_rule_that_is_none(watched, run_id, keyhole):
    told = keyhole("watch", f"run:{run_id}", "--rule", "entropy_nats under 1", expect=2).stderr
    assert "below or above is missing" in " ".join(told.replace("│", " ").split())
    assert "loss jump NUMBER" in keyhole("watch", "--rules").stdout
    assert "stop" in keyhole("watch", "stopp", "1", expect=2).stderr
    assert "keyhole runs" in keyhole("watch", "run:99", "--rule", "loss jump 1", expect=1).stderr


def test_the_command_lists_and_acknowledges_alerts(watched, raised, keyhole):
    listed = keyhole("alerts", "--watch", str(raised["id"])).stdout
    assert "loss_nats is inf at step 20" in listed
    assert len(json.loads(keyhole("alerts", "--metric", "entropy_nats", "--layer", "1", "--json").stdout)) == 2
    assert keyhole("alerts", "--acknowledge", "1", "--acknowledge", "2").stdout == "2 alerts acknowledged.\n"
    assert len(json.loads(keyhole("alerts", "--unseen", "--json").stdout)) == 3
    keyhole("alerts", "--acknowledge-all", expect=2)
    assert "3 alerts" in keyhole("alerts", "--acknowledge-all", "--watch", str(raised["id"])).stdout


def test_following_alerts_prints_each_as_it_is_raised_until_interrupted(watched, run_id, raised, keyhole):
    following = subprocess.Popen(
        [KEYHOLE, "alerts", "--follow", "--json"], env=keyhole.environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        assert following.stdout is not None
        # it begins with what is raised once it runs, which may take a while: raised again until it tells of one
        for step in range(40, 1240, 20):
            runs.write(watched.conn, run_id, [Metric(step - 10, "loss_nats", 3.0), Metric(step, "loss_nats", 12.0)])
            watched.look(judge_all)
            if select.select([following.stdout], [], [], 1.0)[0]:
                break
        alert = json.loads(following.stdout.readline())
        assert alert["step"] <= step and alert["value"] == 12.0
        following.send_signal(signal.SIGINT)
        assert following.wait(60) == 130
    finally:
        following.kill()
