"""Watches of folders and of repositories on the hub."""

import os
import time
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.hf_api import GitRefInfo, GitRefs

from services.api.watching import MOST_AT_ONCE, judge_all, poll, step_of
from services.sources import hub
from tests.integration.watches.conftest import SMALL, finish, write_checkpoint

PROBE = {"kind": "attention_profile", "parameters": SMALL}
LOW = "entropy_nats head below 0.5"


@pytest.fixture
def folder(watched) -> Path:
    path = watched.home / "models" / "run"
    path.mkdir()
    return path


def create(watched, folder: Path, **more):
    return watched.create(target=f"path:{folder}/*", probes=[PROBE], dataset=watched.dataset, rules=[LOW], **more)


def steps(watched, watch_id: int) -> list[int | None]:
    return [each["step"] for each in watched.watch(watch_id)["newest"]][::-1]


def test_folders_are_probed_as_they_appear_and_judged_as_one_series(watched, folder):
    watch = create(watched, folder)
    watched.poll(watch["id"])
    assert watched.watch(watch["id"])["problem"] is None, "nothing is there yet, and that is no problem"
    for step in (100, 20):
        write_checkpoint(folder, step)
    watched.poll(watch["id"])
    assert steps(watched, watch["id"]) == [20, 100]
    for suite in watched.suites():
        (job,) = watched.jobs_of(suite["id"])
        finish(watched.conn, job["id"], {"entropy_nats": {(0, 0): 0.2}})
    watched.look(judge_all)
    (alert,) = watched.alerts()
    assert (alert["step"], alert["run_id"]) == (20, None)
    assert alert["source"].endswith("/step-20")
    write_checkpoint(folder, 300)
    watched.poll(watch["id"])
    assert steps(watched, watch["id"]) == [20, 100, 300]
    assert watched.watch(watch["id"])["active"], "a folder has no end of its own"


def test_a_folder_is_looked_at_when_its_time_has_come_and_by_one_loop(watched, folder):
    create(watched, folder, poll_s=3600)
    watched.look(poll)
    write_checkpoint(folder, 100)
    watched.look(poll, poll)
    assert not watched.suites()
    watched.conn.execute("UPDATE keyhole.watch SET looked_at = looked_at - interval '1 hour'")
    watched.look(poll, poll)
    assert len(watched.suites()) == 1


def test_a_folder_that_is_being_written_is_left_until_it_is_whole(watched, folder):
    watch = create(watched, folder)
    half = write_checkpoint(folder, 100, age_s=-600)  # as if just written, however slow the test
    watched.poll(watch["id"])
    assert not watched.watch(watch["id"])["newest"]
    (half / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")  # shorter than its header says it is
    lately = time.time() - 60
    for each in (*half.iterdir(), half):
        os.utime(each, (lately, lately))
    watched.poll(watch["id"])
    shown = watched.watch(watch["id"])
    assert "step-100" in shown["problem"]
    assert not shown["newest"], "it is tried again"
    whole = write_checkpoint(folder.parent / "elsewhere", 100)
    (half / "model.safetensors").write_bytes((whole / "model.safetensors").read_bytes())
    os.utime(half / "model.safetensors", (lately, lately))
    watched.poll(watch["id"])
    shown = watched.watch(watch["id"])
    assert (shown["problem"], steps(watched, watch["id"])) == (None, [100])


def test_what_has_long_been_no_model_is_given_up_until_the_watch_is_resumed(watched, folder):
    watch = create(watched, folder)
    broken = write_checkpoint(folder, 100)
    (broken / "model.safetensors").write_bytes(b"")
    long_ago = time.time() - 3600
    for each in (*broken.iterdir(), broken):
        os.utime(each, (long_ago, long_ago))
    watched.poll(watch["id"])
    (seen,) = watched.watch(watch["id"])["newest"]
    assert seen["problem"] and seen["judged"] and seen["suite_id"] is None
    watched.poll(watch["id"])
    assert watched.watch(watch["id"])["problem"] is None
    watched.http.post(f"/v1/watches/{watch['id']}/resume")
    assert not watched.watch(watch["id"])["newest"]


def test_a_long_series_is_taken_in_several_looks_that_follow_at_once(watched, folder):
    for step in range(MOST_AT_ONCE + 3):
        write_checkpoint(folder, step)
    watch = create(watched, folder, poll_s=3600)
    watched.look(poll)
    assert len(steps(watched, watch["id"])) == MOST_AT_ONCE
    watched.look(poll)
    assert len(steps(watched, watch["id"])) == MOST_AT_ONCE + 3
    watched.look(poll)
    assert len(watched.suites()) == MOST_AT_ONCE + 3


def test_only_new_folders_are_probed_if_so_asked(watched, folder):
    write_checkpoint(folder, 100)
    watch = create(watched, folder, existing=False)
    write_checkpoint(folder, 200)
    watched.poll(watch["id"])
    assert len(watched.suites()) == 1
    assert len(watched.watch(watch["id"])["newest"]) == 2


def test_after_its_time_a_watch_takes_no_more_and_ends_when_all_is_judged(watched, folder):
    write_checkpoint(folder, 100)
    watch = create(watched, folder, until="2999-01-01T00:00:00Z")
    watched.poll(watch["id"])
    watched.conn.execute("""UPDATE keyhole.watch SET body = body || '{"until": "2020-01-01T00:00:00+00:00"}'""")
    write_checkpoint(folder, 200)
    watched.poll(watch["id"])
    shown = watched.watch(watch["id"])
    assert (shown["active"], len(shown["newest"])) == (True, 1)
    (job,) = watched.jobs_of(watched.suites()[0]["id"])
    finish(watched.conn, job["id"])
    watched.look(judge_all)
    assert watched.watch(watch["id"])["ended"] == "its time is over"


@pytest.mark.parametrize(
    ("target", "status", "told"),
    [
        ("path:{home}/models/absent/*", 422, "There is no folder"),
        ("path:/etc/*", 422, "KEYHOLE_MODEL_ROOTS"),
        ("path:{home}/models/run", 422, "targets read run:ID"),
        ("hf:EleutherAI/pythia-70m", 422, "targets read run:ID"),
        ("hf:../etc@*", 422, "hub model"),
        ("run:77", 404, "There is no run 77"),
        ("sweep:77", 404, "keyhole sweeps"),
        ("run:x", 422, "targets read run:ID"),
    ],
)
def test_a_target_that_is_not_there_is_refused(watched, folder, target, status, told):
    told_of = watched.create(status, target=target.format(home=watched.home), probes=[PROBE], dataset=watched.dataset)
    assert told in f"{told_of['detail']} {told_of['hint']}"


def test_a_hub_that_is_down_is_the_watchs_problem_until_it_answers(watched, monkeypatch):
    """The hub is replaced at the one place where its client asks it: there is none here."""
    references: list[str] = []

    def list_refs(self, name):
        if not references:
            raise OSError("no network")
        refs = [GitRefInfo(name=each, ref=f"refs/tags/{each}", target_commit="0" * 40) for each in references]
        return GitRefs(branches=refs, converts=[], tags=[])

    monkeypatch.setattr(HfApi, "list_repo_refs", list_refs)
    watch = watched.create(target="hf:org/name@step*", probes=[PROBE], dataset=watched.dataset)
    watched.poll(watch["id"])
    assert "hub does not answer" in watched.watch(watch["id"])["problem"]
    references += ["main", "step10", "step9"]
    source = f"path:{write_checkpoint(watched.home / 'models', 1)}"
    asked: list[str] = []

    def resolve(source_, settings):
        asked.append(source_)
        return resolved(source, settings)

    from services.api import resolving

    resolved = resolving.resolve_model
    monkeypatch.setattr(resolving, "resolve_model", resolve)
    watched.poll(watch["id"])
    assert asked == ["hf:org/name@step9", "hf:org/name@step10"]
    shown = watched.watch(watch["id"])
    assert (shown["problem"], steps(watched, watch["id"])) == (None, [9, 10])


def test_a_pattern_that_no_revision_matches_yet_is_watched_if_the_repository_is_there(watched, monkeypatch):
    """The hub's client is replaced where it asks: there is no hub here."""

    def list_refs(self, name):
        if name == "org/absent":
            asked = httpx2.Request("GET", "http://hub")
            raise RepositoryNotFoundError("404", response=httpx2.Response(404, request=asked))
        main = GitRefInfo(name="main", ref="refs/heads/main", target_commit="0" * 40)
        return GitRefs(branches=[main], converts=[], tags=[])

    monkeypatch.setattr(HfApi, "list_repo_refs", list_refs)
    body = {"probes": [PROBE], "dataset": watched.dataset}
    watch = watched.create(target="hf:org/name@step*", **body)
    watched.poll(watch["id"])
    shown = watched.watch(watch["id"])
    assert (shown["active"], shown["problem"], shown["newest"]) == (True, None, [])
    assert "The hub has no model org/absent" in watched.create(422, target="hf:org/absent@step*", **body)["detail"]


def test_every_commit_of_a_branch_is_a_checkpoint(watched, monkeypatch):
    commit = ["a" * 40]
    monkeypatch.setattr(hub, "model_commit", lambda name, revision: (commit[0], ["config.json"]))
    source = f"path:{write_checkpoint(watched.home / 'models', 1)}"
    from services.api import resolving

    resolved = resolving.resolve_model
    monkeypatch.setattr(resolving, "resolve_model", lambda _, settings: resolved(source, settings))
    watch = watched.create(target="hf:org/name@main", probes=[PROBE], dataset=watched.dataset)
    watched.poll(watch["id"])
    watched.poll(watch["id"])
    commit[0] = "b" * 40
    watched.poll(watch["id"])
    seen = [each["source"] for each in watched.watch(watch["id"])["newest"]][::-1]
    assert seen == [f"hf:org/name@{letter * 40}" for letter in "ab"]


@pytest.mark.parametrize(
    ("source", "step"),
    [
        ("path:/runs/a3/step-1000", 1000),
        ("path:/runs/a3/checkpoint", None),
        ("hf:org/m7@step143000", 143000),
        ("hf:org/m7@stage1-step5", 5),
        ("hf:org/m7@step1000-tokens4B", 1000),
        ("hf:org/m7@" + "1" * 40, None),
        ("path:/runs/step-0", 0),
    ],
)
def test_the_step_is_that_of_the_name_as_everywhere(source, step):
    assert step_of(source) == step
