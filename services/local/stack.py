"""The embedded stack: PostgreSQL, Valkey, migrations, API, reconciler, worker and dashboard on one machine.

`up` starts what does not run and waits until it answers; `down` stops what belongs to the stack and nothing else.
Whatever was killed in between, the next `up` goes on from what it finds.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg

from db import migrate
from db.connection import connect
from db.repositories import api_tokens
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.local import first_token, processes, stack_file
from services.local.addresses import choose_addresses
from services.local.child_services import ChildService, child_services
from services.local.home_lock import home_lock
from services.local.passwords import password
from services.local.postgres import DATABASE, EmbeddedPostgres
from services.local.stack_file import ProcessRecord, StackFile
from services.local.valkey import EmbeddedValkey

ANALYST = "analyst"
DOWN_ORDER = ("worker", "reconciler", "dashboard", "api", "valkey")  # the worker first: its shards go back
STOP_GRACE_S = 10.0


@dataclass(frozen=True)
class ServiceState:
    name: str
    pid: int | None  # None: not running
    answers: bool
    address: str
    log: str

    @property
    def word(self) -> str:
        return "not running" if self.pid is None else "answers" if self.answers else "does not answer"


class LocalStack:
    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        self.home = settings.home.expanduser().absolute()
        self.settings = settings.model_copy(update={"home": self.home})
        self.logs = self.home / "logs"
        self._say = say
        self._postgres = EmbeddedPostgres(self.home / "postgres", say=say)
        self._valkey = EmbeddedValkey(self.home / "valkey", log=self.logs / "valkey.log")

    def up(self) -> list[str]:
        """Start whatever does not run yet; returns the names of the services that were started.

        Raises KeyholeError with the end of the log of the service that failed; services that this call had started
        are then stopped again.
        """
        self._refuse_configured_services()
        self._make_home()
        with home_lock(self.home, self._say):
            started: list[str] = []
            try:
                self._start_all(started)
            except BaseException:
                self._stop(started)
                if not self._runs():
                    stack_file.remove(self.home)
                raise
            return started

    def down(self) -> list[str]:
        """Stop every service of this home, the worker first; returns the names of those that were running."""
        if not self.home.exists():
            return []
        with home_lock(self.home, self._say):
            stopped = self._stop([*DOWN_ORDER, "postgres"])
            stack_file.remove(self.home)
            return stopped

    def status(self) -> list[ServiceState]:
        """Every service: its process, and whether it answers."""
        stack = stack_file.read(self.home)
        if stack is None:
            return [ServiceState(name, None, False, "", "") for name in ("postgres", *reversed(DOWN_ORDER))]
        postgres, valkey = self._postgres, self._valkey
        states = [
            ServiceState(
                "postgres", postgres.pid(), _answers(stack.database_url), str(postgres.sockets), str(postgres.log)
            ),
            ServiceState("valkey", self._alive(stack, "valkey"), valkey.answers(), str(valkey.socket), str(valkey.log)),
        ]
        addresses = {"api": stack.api_url, "dashboard": stack.dashboard_url}
        for service in child_services(self.settings, stack):
            pid = self._alive(stack, service.name)
            answers = pid is not None and service.answers(pid)
            log = str(self._log(service.name))
            states.append(ServiceState(service.name, pid, answers, addresses.get(service.name, ""), log))
        return states

    def exists(self) -> bool:
        return (self.home / stack_file.NAME).exists()

    def dead(self) -> list[str]:
        """Services that were started and have ended since, without `keyhole down`."""
        stack = stack_file.read(self.home)
        if stack is None:
            return []
        ended = [name for name in stack.processes if self._alive(stack, name) is None]
        return ended if self._postgres.pid() is not None else ["postgres", *ended]

    def addresses(self) -> StackFile:
        stack = stack_file.read(self.home)
        if stack is None:
            raise KeyholeError(ErrorCode.UNAVAILABLE, f"No stack runs in {self.home}.", "Start it with: keyhole up")
        return stack

    def _refuse_configured_services(self) -> None:
        named = [
            name
            for name, value in (
                ("KEYHOLE_DATABASE_URL", self.settings.database_url),
                ("KEYHOLE_BROKER_URL", self.settings.broker_url),
            )
            if value is not None
        ]
        if named:
            raise KeyholeError(
                ErrorCode.CONFLICT,
                f"{' and '.join(named)} {'is' if len(named) == 1 else 'are'} set: `keyhole up` would start servers of "
                "its own beside those.",
                "Unset them for the embedded stack, or start each service by hand: keyhole migrate, then keyhole serve "
                "api, keyhole serve worker, keyhole serve reconciler, keyhole serve dashboard.",
            )

    def _make_home(self) -> None:
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.geteuid() == 0:
                self.home.chmod(0o711)  # PostgreSQL's user passes through; what lies inside is closed
            self.logs.mkdir(mode=0o700, exist_ok=True)
            for allowed in ("models", "data"):  # where path:, file: and tokens: may point unless settings say otherwise
                (self.home / allowed).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise KeyholeError(
                ErrorCode.UNAVAILABLE,
                f"The folder {self.home} cannot be made or written: {error.strerror}.",
                "Set KEYHOLE_HOME to a folder of your own.",
            ) from error

    def _start_all(self, started: list[str]) -> None:
        previous = stack_file.read(self.home)
        if self._postgres.pid() is None:
            self._say("starting PostgreSQL")
            started.append("postgres")
            self._postgres.start()
        stack = self._stack(previous)
        stack_file.write(self.home, stack)
        if self._alive(stack, "valkey") is None or not self._valkey.answers():
            self._stop(["valkey"])
            self._say("starting Valkey")
            started.append("valkey")
            self._record(stack, "valkey", self._valkey.start())
        self._migrate(stack)
        services = child_services(self.settings, stack)
        for service in services:
            if self._alive(stack, service.name) is None:
                self._say(f"starting {service.name}")
                started.append(service.name)
                child = processes.start(
                    service.command, log=self._log(service.name), cwd=self.home, environment=service.environment
                )
                self._record(stack, service.name, child)
        for service in services:
            self._wait(stack, service)

    def _stack(self, previous: StackFile | None) -> StackFile:
        api_url, dashboard_url = choose_addresses(self.settings, previous)
        if previous and api_url != previous.api_url:
            self._stop(["dashboard"])  # it was told the API's former address
        return StackFile(
            api_url=api_url,
            dashboard_url=dashboard_url,
            database_url=self._postgres.owner_url(),
            analyst_url=self._postgres.url(ANALYST, self._postgres.password(ANALYST)),
            broker_url=self._valkey.url,
            token=password(self.home / "token", api_tokens.PREFIX),
            processes=previous.processes if previous else {},
        )

    def _migrate(self, stack: StackFile) -> None:
        migrate.upgrade(stack.database_url, self._postgres.password(ANALYST))
        for warning in migrate.harden(self._postgres.superuser_url(DATABASE)):
            self._say(f"warning: {warning}")
        first_token.store(stack.database_url, stack.token, "embedded stack")

    def _wait(self, stack: StackFile, service: ChildService) -> None:
        deadline = time.monotonic() + service.start_limit_s
        while time.monotonic() < deadline:
            pid = self._alive(stack, service.name)
            if pid is None:
                raise self._failed(service, "ended right after its start")
            if service.answers(pid):
                return
            time.sleep(0.1)
        raise self._failed(service, f"did not answer within {service.start_limit_s:.0f} s")

    def _failed(self, service: ChildService, what: str) -> KeyholeError:
        log = self._log(service.name)
        return KeyholeError(
            ErrorCode.UNAVAILABLE,
            f"The {service.name} {what}. The end of its log:\n{processes.log_tail(log)}",
            f"Log: {log}. `keyhole doctor` checks this machine.",
        )

    def _runs(self) -> bool:
        """Whether anything of this home's stack is alive."""
        stack = stack_file.read(self.home)
        alive = stack is not None and any(record.child().alive for record in stack.processes.values())
        return alive or self._postgres.pid() is not None

    def _record(self, stack: StackFile, name: str, child: processes.ChildProcess) -> None:
        stack.processes[name] = ProcessRecord(pid=child.pid, started_at=child.started_at)
        stack_file.write(self.home, stack)

    def _alive(self, stack: StackFile, name: str) -> int | None:
        record = stack.processes.get(name)
        return record.pid if record and record.child().alive else None

    def _log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def _stop(self, names: list[str]) -> list[str]:
        """Stop those of ``names`` that run, in the order of DOWN_ORDER, PostgreSQL last."""
        stopped = []
        stack = stack_file.read(self.home)
        for name in DOWN_ORDER:
            record = stack.processes.get(name) if stack and name in names else None
            if record is None or not record.child().alive:
                continue
            self._say(f"stopping {name}")
            stopped.append(name)
            # a worker's children get stop_grace_s to end, then it gives their shards back
            grace_s = STOP_GRACE_S + (self.settings.life.stop_grace_s + 15 if name == "worker" else 0)
            if not record.child().stop(grace_s):
                self._say(f"{name} did not end in time and was killed")
        if "postgres" in names and self._postgres.pid() is not None:
            self._say("stopping PostgreSQL")
            self._postgres.stop()
            stopped.append("postgres")
        return stopped


def _answers(database_url: str) -> bool:
    try:
        connect(database_url, connect_timeout=3).close()
    except psycopg.Error:
        return False
    return True
