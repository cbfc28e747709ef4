"""Where an export may write and what it may delete; what it says of connections that break."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from pathlib import Path
from threading import Event, Thread

import pytest

from services.client.checkpoint_export import export
from services.client.connection import Connection, Unreachable
from services.contracts.checkpoints import CheckpointDetail, CheckpointFile
from services.contracts.errors import ErrorCode, KeyholeError

CONTENTS = {"config.json": b"{}", "model.safetensors": b"weights" * 100}


def detail(number: int = 7) -> CheckpointDetail:
    files = [
        CheckpointFile(name=name, bytes=len(body), sha256=hashlib.sha256(body).hexdigest())
        for name, body in CONTENTS.items()
    ]
    return CheckpointDetail.model_construct(
        id=number,
        run_id=1,
        run="a run",
        step=10,
        variant="control",
        model_type="gpt2",
        validation_loss_nats=None,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        identity="sha256:0",
        attention=None,
        source=None,
        config={},
        files=files,
    )


Asked = list[str]
Answer = Callable[[BaseHTTPRequestHandler, Asked], None]


def whole(request: BaseHTTPRequestHandler, asked: Asked) -> None:
    answered(request, CONTENTS[request.path.rpartition("/")[2]])


def answered(request: BaseHTTPRequestHandler, body: bytes, status: int = 200, length: int | None = None) -> None:
    request.send_response(status)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(body) if length is None else length))
    request.end_headers()
    request.wfile.write(body)


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[Connection, Asked]]:
    """A connection to a server that answers files and verifications as told, and what it was asked."""
    asked: Asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.command} {self.path}")
            answer(self, asked)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    connection = Connection(f"http://127.0.0.1:{server.server_port}", "kh_any")
    try:
        yield connection, asked
    finally:
        connection.close()
        server.shutdown()
        server.server_close()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "README.md"}


def test_somebodys_own_folder_of_the_partial_name_is_refused_and_left_as_it_is(tmp_path):
    partial = tmp_path / "out.partial"
    partial.mkdir()
    (partial / "thesis.tex").write_text("years of work")
    (partial / "config.json").write_text("mine")
    with serving(whole) as (connection, asked), pytest.raises(KeyholeError, match=str(partial)) as refused:
        export(connection, detail(), tmp_path / "out", resume_state=False)
    assert refused.value.code is ErrorCode.CONFLICT
    assert "delete" in refused.value.hint
    assert contents(partial) == {"thesis.tex": b"years of work", "config.json": b"mine"}
    assert asked == []


def test_a_link_of_the_partial_name_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out.partial").symlink_to(tmp_path / "elsewhere")
    with serving(whole) as (connection, _), pytest.raises(KeyholeError, match="no unfinished export"):
        export(connection, detail(), tmp_path / "out", resume_state=False)
    assert contents(tmp_path / "elsewhere") == {}


def test_an_unfinished_export_goes_on_with_what_is_missing_and_leaves_nothing_else(tmp_path):
    partial = tmp_path / "out.partial"
    partial.mkdir()
    for name, body in ((".keyhole-export", b""), ("vocab.json", b"of another one"), ("config.json", b"{}")):
        (partial / name).write_bytes(body)
    with serving(whole) as (connection, asked):
        folder = export(connection, detail(), tmp_path / "out", resume_state=False)
    assert contents(folder) == CONTENTS
    assert asked == ["GET /v1/checkpoints/7/files/model.safetensors"]
    assert not partial.exists()


def test_the_folder_one_is_in_is_filled_and_stays_the_same_folder(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    before = here.stat().st_ino
    monkeypatch.chdir(here)
    with serving(whole) as (connection, _):
        assert export(connection, detail(), Path(), resume_state=False) == here
        assert contents(Path()) == CONTENTS
    assert here.stat().st_ino == before
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("another one")
    with serving(whole) as (connection, _), pytest.raises(KeyholeError, match="not an export of checkpoint 7"):
        export(connection, detail(), tmp_path, resume_state=False)
    assert contents(tmp_path) == {"config.json": b"another one"}


def test_a_lost_connection_is_tried_again_without_asking_for_damage(tmp_path):
    def first_is_away(request: BaseHTTPRequestHandler, asked: Asked) -> None:
        if len(asked) == 1:
            answered(request, b"{}", status=503)
        else:
            whole(request, asked)

    with serving(first_is_away) as (connection, asked):
        folder = export(connection, detail(), tmp_path / "out", resume_state=False)
    assert contents(folder) == CONTENTS
    assert not [each for each in asked if each.startswith("POST")]


def test_bodies_that_break_off_from_sound_files_are_told_as_the_connection(tmp_path):
    def broken(request: BaseHTTPRequestHandler, asked: Asked) -> None:
        if request.command == "POST":
            answered(request, b'{"id": 7, "files": 2, "bytes": 702}')
        else:
            answered(request, b"{", length=2)

    with serving(broken) as (connection, asked), pytest.raises(Unreachable, match="RemoteProtocolError"):
        export(connection, detail(), tmp_path / "out", resume_state=False)
    assert asked == ["GET /v1/checkpoints/7/files/config.json", "POST /v1/checkpoints/7/verify"] * 3


def exported(url: str, folder: Path) -> None:
    """Of a process of its own: exports, and dies of any complaint."""
    connection = Connection(url, "kh_any")
    export(connection, detail(), folder, resume_state=False)
    connection.close()


@pytest.mark.parametrize("there", [False, True])
def test_exports_to_one_folder_at_the_same_time_all_succeed_and_fetch_once(tmp_path, there):
    if there:
        (tmp_path / "out").mkdir()
    spawning = get_context("spawn")
    with serving(whole) as (connection, asked):
        exports = [spawning.Process(target=exported, args=(connection.url, tmp_path / "out")) for _ in range(3)]
        for each in exports:
            each.start()
        for each in exports:
            each.join()
    assert [each.exitcode for each in exports] == [0, 0, 0]
    assert contents(tmp_path / "out") == CONTENTS
    assert len(asked) == len(CONTENTS)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_export_waits_for_the_one_that_writes_the_folder_and_says_so(tmp_path):
    waits, said = Event(), list[str]()

    def once_another_waits(request: BaseHTTPRequestHandler, asked: Asked) -> None:
        assert waits.wait(60)
        whole(request, asked)

    def say(text: str) -> None:
        said.append(text)
        waits.set()

    with serving(once_another_waits) as (connection, asked):
        both = [
            Thread(
                target=export,
                args=(connection, detail(), tmp_path / "out"),
                kwargs={"resume_state": False, "say": say},
            )
            for _ in range(2)
        ]
        for each in both:
            each.start()
        for each in both:
            each.join()
    assert said == [f"Another export is writing {tmp_path / 'out.partial'}; waiting for it to end."]
    assert contents(tmp_path / "out") == CONTENTS
    assert len(asked) == len(CONTENTS)


def test_a_refused_export_leaves_no_folder_behind(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with serving(whole) as (connection, _), pytest.raises(KeyholeError, match="not an export"):
        export(connection, detail(), tmp_path / "out", resume_state=False)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("config.json", "config.json differs from the stored one."),
        ("README.md", "README.md differs from the stored one."),
        ("notes.txt", "notes.txt is not of it."),
    ],
)
def test_an_altered_export_is_refused_by_the_name_of_the_file(tmp_path, name, told):
    with serving(whole) as (connection, _):
        folder = export(connection, detail(), tmp_path / "out", resume_state=False)
        (folder / name).write_text("altered")
        (folder / "model.safetensors").unlink()
        with pytest.raises(KeyholeError, match=f"is not an export of checkpoint 7: {told}"):
            export(connection, detail(), folder, resume_state=False)
        assert (folder / name).read_text() == "altered"
        (folder / name).unlink()
        export(connection, detail(), folder, resume_state=False)
    assert contents(folder) == CONTENTS
    assert (folder / "README.md").is_file()


def test_what_is_missing_from_an_export_is_fetched_again(tmp_path):
    with serving(whole) as (connection, asked):
        folder = export(connection, detail(), tmp_path / "out", resume_state=False)
        (folder / "config.json").unlink()
        asked.clear()
        export(connection, detail(), folder, resume_state=False)
        assert asked == ["GET /v1/checkpoints/7/files/config.json"]
    assert contents(folder) == CONTENTS
