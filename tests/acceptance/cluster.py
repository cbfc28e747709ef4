"""Every service started by hand, as a team would: PostgreSQL and Valkey on TCP, the others as processes.

Times of the life cycle are short here, so that a lost lease takes seconds.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import httpx
import numpy as np
import psutil
import psycopg
import torch
from psycopg import OperationalError
from transformers import LlamaConfig, LlamaForCausalLM

from db import migrate
from db.repositories import api_tokens
from services.client import Job, Keyhole
from services.contracts.states import Scope
from services.local.postgres import EmbeddedPostgres
from services.local.processes import ChildProcess
from services.local.valkey import EmbeddedValkey

T = TypeVar("T")
LEASE_S = 4.0
VOCABULARY = 256
STANDARD_SEQUENCES = 200


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def eventually(what: str, ask: Callable[[], T], timeout_s: float = 90.0) -> T:
    """Ask until the answer is true; fails with what was waited for. Lost connections while asking are no answer."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if answer := ask():
                return answer
        except (OperationalError, httpx.TransportError):
            pass
        time.sleep(0.05)
    raise AssertionError(f"after {timeout_s:g} s still not so: {what}")


class Service:
    """A process with a log, killed at the end of the test whatever happens."""

    def __init__(self, name: str, arguments: list[str], environment: dict[str, str], log: Path) -> None:
        self.name, self.log = name, log
        self._output: IO[bytes] = log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            env=environment,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def children(self) -> list[psutil.Process]:
        """The worker's child processes that execute attempts."""
        with_lines = [(child, child.cmdline()) for child in psutil.Process(self.process.pid).children()]
        return [child for child, line in with_lines if "workers.execution" in line]

    def send(self, signal_number: int) -> None:
        self.process.send_signal(signal_number)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._output.close()


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.postgres = EmbeddedPostgres(folder / "postgres", tcp_port=free_port())
        self.valkey = EmbeddedValkey(folder / "valkey", tcp_port=free_port())
        self.valkey_process: ChildProcess | None = None
        self.home = folder / "home"
        (self.home / "models").mkdir(parents=True)
        (self.home / "data").mkdir()
        self.api_url = f"http://127.0.0.1:{free_port()}"
        self.services: list[Service] = []
        self.token = ""

    def start(self) -> None:
        self.postgres.start()
        self.valkey_process = self.valkey.start()
        analyst_password = secrets.token_urlsafe(16)
        migrate.upgrade(self.database_url, analyst_password=analyst_password)
        migrate.harden(self.postgres.superuser_url())
        with psycopg.connect(self.database_url) as conn:
            _, self.token = api_tokens.create(conn, "tests", Scope.ADMIN)
        self.environment = os.environ | {
            "KEYHOLE_HOME": str(self.home),
            "KEYHOLE_DATABASE_URL": self.database_url,
            "KEYHOLE_ANALYST_URL": self.postgres.url("analyst", analyst_password, tcp=True),
            "KEYHOLE_BROKER_URL": f"redis://127.0.0.1:{self.valkey.tcp_port}/0",
            "KEYHOLE_API_URL": self.api_url,
            "KEYHOLE_TOKEN": self.token,
            "KEYHOLE_DEVICES": "cpu",
            "KEYHOLE_LIFE__LEASE_S": str(LEASE_S),
            "KEYHOLE_LIFE__HEARTBEAT_S": "0.5",
            "KEYHOLE_LIFE__RECONCILE_S": "0.5",
            "KEYHOLE_LIFE__HINT_S": "2",
            "KEYHOLE_LIFE__DATABASE_GRACE_S": "4",
            "KEYHOLE_LIFE__STOP_GRACE_S": "1",
            "OMP_NUM_THREADS": "1",
        }
        port = self.api_url.rpartition(":")[2]
        self.start_service(
            "api", ["uvicorn", "services.api.app:create_app", "--factory", "--host", "127.0.0.1", "--port", port]
        )
        self.start_service("reconciler", ["workers.reconciler"])
        eventually("the API is ready", lambda: httpx.get(f"{self.api_url}/v1/health/ready").status_code == 200)

    @property
    def database_url(self) -> str:
        return self.postgres.owner_url(tcp=True)

    def start_service(self, name: str, arguments: list[str]) -> Service:
        log = self.folder / f"{name}-{len(self.services)}.log"
        service = Service(name, arguments, self.environment, log)
        self.services.append(service)
        return service

    @contextmanager
    def worker(self) -> Iterator[Service]:
        service = self.start_service("worker", ["workers.start"])
        try:
            yield service
        finally:
            service.stop()

    def stop(self) -> None:
        for service in reversed(self.services):
            service.stop()
        if self.valkey_process is not None:
            self.valkey_process.stop(5)
        self.postgres.stop()

    def client(self) -> Keyhole:
        return Keyhole(self.api_url, self.token)

    def sql(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Ask the database as its owner, past the API."""
        with psycopg.connect(self.database_url, autocommit=True) as conn:
            return conn.execute(query, values).fetchall()  # type: ignore[arg-type]  # constants of the tests

    def state(self, job_id: int) -> str:
        return self.sql("SELECT state FROM keyhole.job WHERE id = %s", job_id)[0][0]

    def shards_done(self, job_id: int) -> int:
        return self.sql("SELECT shards_done FROM keyhole.job WHERE id = %s", job_id)[0][0]

    def outcomes(self, job_id: int) -> list[str | None]:
        return [row[0] for row in self.sql("SELECT outcome FROM keyhole.attempt WHERE job_id = %s ORDER BY id", job_id)]

    def fingerprint(self, job_id: int) -> tuple[int, str]:
        """Number of rows and a hash over all of them: equal for equal results, whatever the order of writing."""
        return self.sql(
            """
            SELECT count(*), md5(string_agg(concat_ws(',', layer, head, sequence, query, log10_d_a, log10_d_c), ';'
                                            ORDER BY layer, head, sequence, query))
            FROM keyhole.gradient_scale WHERE job_id = %s
            """,
            job_id,
        )[0]

    def submit(self, sequences: int = STANDARD_SEQUENCES, **parameters: Any) -> Job:
        """The standard job: one shard a sequence, enough of them that the middle is there to be hit."""
        return self.client().submit(
            "gradient_scale",
            model="path:" + str(self.home / "models" / "tiny"),
            dataset="tokens:" + str(self.home / "data" / "tokens.npy"),
            force=True,
            sequences=sequences,
            length=128,
            **{"queries": {"start": 8, "step": 4}, **parameters},
        )


def write_tiny_model(folder: Path) -> None:
    """A random two-layer Llama with grouped queries: real files and a real architecture, milliseconds per sequence."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def write_tokens(file: Path, sequences: int = 400, length: int = 128) -> None:
    np.save(file, np.random.default_rng(0).integers(0, VOCABULARY, (sequences, length), dtype=np.int32))
