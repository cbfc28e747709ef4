"""Start a worker: ``python -m workers.start``. One thread per device; the work itself happens in child processes."""

import os
import socket
import sys
import threading
import warnings
from importlib.metadata import version
from typing import Any

import psycopg
import structlog
from celery.exceptions import SecurityWarning
from celery.signals import worker_ready, worker_shutting_down

from db.repositories import workers
from services.contracts.kinds import QUEUES
from services.contracts.settings import settings
from workers import devices, supervisor, tasks
from workers.celery_app import app
from workers.lifecycle import Ledger
from workers.log import configure

log = structlog.get_logger()
_SEEN_EVERY_S = 10.0


def main() -> None:
    configuration = settings()
    if configuration.database_url is None or configuration.broker_url is None:
        sys.exit("A worker needs KEYHOLE_DATABASE_URL and KEYHOLE_BROKER_URL. On one machine use: keyhole up")
    served = [name for name in configuration.queues.split(",") if name]
    if unknown := set(served) - set(QUEUES):
        sys.exit(f"KEYHOLE_QUEUES names {', '.join(sorted(unknown))}; the queues are {', '.join(QUEUES)}.")
    offered = devices.offered(configuration.devices)
    for device in offered:
        tasks.free_devices.put(device)
    tasks.worker_name = f"{socket.gethostname()}:{os.getpid()}"
    configure(worker=tasks.worker_name)
    threading.Thread(target=_tell_of_life, args=(",".join(served), ",".join(offered)), daemon=True).start()
    # Messages are JSON with a number in them; who runs a worker as root has chosen to.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    app.worker_main(
        [
            "--quiet",
            "worker",
            "--pool=threads",
            f"--concurrency={len(offered)}",
            f"--queues={','.join(served)}",
            f"--hostname={tasks.worker_name}",
            "--without-gossip",
            "--without-mingle",
            "--loglevel=WARNING",
        ]
    )


@worker_ready.connect
def _ready(**_: Any) -> None:
    log.info("worker ready")


@worker_shutting_down.connect
def _shutting_down(**_: Any) -> None:
    supervisor.shutting_down.set()


def _tell_of_life(queues: str, offered: str) -> None:
    """Keep this worker's row fresh until it shuts down, then remove it."""
    configuration = settings()
    assert configuration.database_url is not None
    ledger = Ledger(configuration.database_url.get_secret_value(), patience_s=0.0)
    name, host = tasks.worker_name, socket.gethostname()
    registered = False

    def tell(conn: psycopg.Connection) -> None:
        if not registered:
            workers.register(conn, name, host, queues, offered, version("keyhole"))
        workers.seen(conn, name, devices.gpu_memory_bytes() if offered != "cpu" else None)

    while not supervisor.shutting_down.is_set():
        try:
            ledger.transact(tell)
            registered = True
        except psycopg.Error as error:
            log.warning("database does not answer", error=str(error).strip())
        supervisor.shutting_down.wait(_SEEN_EVERY_S)
    try:
        ledger.transact(lambda conn: workers.retire(conn, name))
    except psycopg.Error:
        log.warning("the worker's row stays; it will show as not seen")


if __name__ == "__main__":
    main()
