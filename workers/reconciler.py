"""Puts right what crashes, restarts and lost messages leave behind: ``python -m workers.reconciler``.

Several may run; an advisory lock lets one at a time do a round.
"""

import signal
import sys
import threading
from typing import Any
from uuid import UUID

import psycopg
import structlog
from kombu.exceptions import OperationalError as BrokerError
from psycopg import Connection

from db import analyst_sessions, merging, piece_collector
from db.connection import connect
from db.repositories import attempts, checkpoints, jobs
from services.contracts.errors import KeyholeError
from services.contracts.settings import Settings, settings
from services.contracts.states import AttemptOutcome
from workers.celery_app import app
from workers.log import configure
from workers.tasks import announce

log = structlog.get_logger()
_LOCK = 0x4B45594844  # one reconciler at a time; any number that nothing else uses
_HOUSEKEEPING_EVERY_S = 60.0
_COLLECTING_EVERY = 10  # rounds of housekeeping: finding unwanted pieces reads the index of all


def reconcile(conn: Connection, configuration: Settings) -> None:
    """One round: expired leases, unsettled jobs, hints for waiting jobs, overlong analysts' statements."""
    life = configuration.life
    locked = conn.execute("SELECT pg_try_advisory_lock(%s)", (_LOCK,)).fetchone()
    if not (locked and locked[0]):
        return
    try:
        for token in attempts.expired(conn, life.database_grace_s):
            _end_expired(conn, token, life.lease_s)
        for job_id in attempts.unsettled_jobs(conn):
            _settle(conn, job_id)
        _announce_waiting(conn, life.hint_s)
        analyst_sessions.reap(conn, configuration.sql_timeout_s)
    finally:
        if not conn.closed:
            conn.execute("SELECT pg_advisory_unlock(%s)", (_LOCK,))


def _end_expired(conn: Connection, token: UUID, lease_s: float) -> None:
    attempts.cut_off(conn, token)
    with conn.transaction():
        if attempts.end(conn, token, AttemptOutcome.LOST, f"the lease of {lease_s:g} s ran out"):
            log.warning("attempt lost", attempt=str(token))


def _settle(conn: Connection, job_id: int) -> None:
    with conn.transaction():
        jobs.lock(conn, job_id)
        if job_id in attempts.unsettled_jobs(conn):
            attempts.settle(conn, job_id)


def _announce_waiting(conn: Connection, hint_s: float) -> None:
    """Send hints for waiting jobs to queues that hold none: a hint in the queue will wake a worker for any job."""
    with conn.transaction():
        waiting = jobs.waiting(conn, hint_s)
        if not waiting:
            return
        try:
            with app.connection_for_write(connect_timeout=5) as broker:
                for queue in {queue for _, queue in waiting}:
                    held = broker.default_channel.queue_declare(queue, durable=True).message_count
                    if held:
                        continue
                    for job_id, its_queue in waiting:
                        if its_queue == queue:
                            announce(queue, job_id)
        except (BrokerError, OSError) as error:
            log.warning("broker does not answer; hints wait", error=str(error))
            raise psycopg.Rollback from error


def keep_house(url: str, stop: threading.Event) -> None:
    """Free the storage of deleted jobs and checkpoints, and merge small old partitions, beside the rounds."""
    rounds = 0
    while not stop.wait(_HOUSEKEEPING_EVERY_S):
        rounds += 1
        try:
            with connect(url) as conn:
                if changes := merging.tidy(conn):
                    log.info("partitions tidied", changes=changes)
                if removed := checkpoints.remove_unwanted(conn):
                    log.info("checkpoints removed", checkpoints=removed)
                if rounds % _COLLECTING_EVERY == 0 and (collected := piece_collector.collect(conn)).pieces:
                    log.info("pieces of checkpoints removed", pieces=collected.pieces, bytes=collected.bytes)
        except (psycopg.Error, KeyholeError) as error:
            log.warning("housekeeping waits", error=str(error).strip())


def main() -> None:
    configuration = settings()
    if configuration.database_url is None or configuration.broker_url is None:
        sys.exit("The reconciler needs KEYHOLE_DATABASE_URL and KEYHOLE_BROKER_URL. On one machine use: keyhole up")
    configure(worker="reconciler")
    url = configuration.database_url.get_secret_value()
    stop = threading.Event()

    def on_signal(*_: Any) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    threading.Thread(target=keep_house, args=(url, stop), daemon=True).start()
    conn: Connection | None = None
    log.info("reconciler ready")
    while not stop.wait(configuration.life.reconcile_s):
        try:
            if conn is None or conn.closed:
                conn = connect(url)
            reconcile(conn, configuration)
        except psycopg.Error as error:
            log.warning("database does not answer", error=str(error).strip())
            if conn is not None:
                conn.close()
    if conn is not None:
        conn.close()


if __name__ == "__main__":
    main()
