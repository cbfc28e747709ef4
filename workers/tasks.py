"""The one task. A hint names a job, but the database says which job of the queue is next."""

import queue as queues
import socket

import psycopg
import structlog
from celery import Task
from kombu.exceptions import OperationalError as BrokerError

from db.repositories import attempts, counters, workers
from db.repositories.attempts import OpenAttempt
from services.contracts.kinds import RUN_JOB_TASK
from services.contracts.settings import settings
from workers import supervisor
from workers.celery_app import app
from workers.lifecycle import Ledger

log = structlog.get_logger()

free_devices: queues.Queue[str] = queues.Queue()  # filled by the worker at its start, one entry per slot
worker_name = socket.gethostname()


def announce(queue: str, job_id: int) -> None:
    """Send a hint that the queue has work."""
    app.send_task(RUN_JOB_TASK, args=[job_id], queue=queue, ignore_result=True)


def _pass_on(queue: str, job_id: int) -> None:
    """Let another worker take part. If the broker is away, the reconciler will send a hint."""
    try:
        announce(queue, job_id)
    except (BrokerError, OSError) as error:
        log.warning("broker does not answer", error=str(error))


@app.task(name=RUN_JOB_TASK, bind=True)
def run_job(task: Task, job_id: int) -> None:
    """Serve the queue's next job with one attempt, and pass the hint on while there is more to do."""
    queue: str = (task.request.delivery_info or {}).get("routing_key", "probe")
    if supervisor.shutting_down.is_set():
        _pass_on(queue, job_id)
        return
    configuration = settings()
    assert configuration.database_url is not None
    life = configuration.life
    ledger = Ledger(configuration.database_url.get_secret_value(), life.database_grace_s)
    device = free_devices.get()

    def following(finished: int) -> OpenAttempt | None:
        """An attempt for the child that has just finished a job, on another that wants the same model."""
        try:
            return ledger.transact(
                lambda conn: attempts.open_attempt(conn, queue, worker_name, device, life.lease_s, after=finished)
            )
        except psycopg.Error as error:  # its job stays in the queue
            log.warning("no job to go on with", error=str(error).strip())
            return None

    try:
        ledger.transact(lambda conn: workers.polled(conn, worker_name))
        attempt = ledger.transact(lambda conn: attempts.open_attempt(conn, queue, worker_name, device, life.lease_s))
        if attempt is None:
            ledger.transact(lambda conn: counters.increment(conn, "hints_without_work"))
            return
        waiting = ledger.transact(lambda conn: attempts.next_job(conn, queue))
        if waiting is not None:
            _pass_on(queue, waiting)
        supervisor.supervise(attempt, device, configuration, following)
    finally:
        free_devices.put(device)
        ledger.close()
