"""Tell the workers that a job waits. The one place of the services that knows Celery.

A message is a hint that carries a job id: losing it costs time until the reconciler sends another, never the job.
"""

import functools

import structlog
from celery import Celery
from kombu.exceptions import KombuError, OperationalError

from services.contracts.kinds import RUN_JOB_TASK
from services.contracts.settings import Settings

_log = structlog.get_logger("keyhole.api")
_PUBLISH_TIMEOUT_S = 2.0


@functools.lru_cache(maxsize=4)
def _sender(broker_url: str) -> Celery:
    app = Celery("keyhole-api", broker=broker_url, set_as_current=False)
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        broker_connection_timeout=_PUBLISH_TIMEOUT_S,
        broker_transport_options={
            "socket_timeout": _PUBLISH_TIMEOUT_S,
            "socket_connect_timeout": _PUBLISH_TIMEOUT_S,
            "retry_on_timeout": False,
        },
    )
    return app


def announce(settings: Settings, queue: str, job_id: int) -> bool:
    """Send the hint; returns whether the broker took it. The job is in the database either way."""
    if settings.broker_url is None:
        return False
    try:
        _sender(settings.broker_url.get_secret_value()).send_task(
            RUN_JOB_TASK, args=[job_id], queue=queue, ignore_result=True, retry=False
        )
    except (OperationalError, KombuError, OSError) as error:
        _log.warning("broker_unavailable", job=job_id, queue=queue, error=type(error).__name__)
        return False
    return True


def broker_answers(settings: Settings) -> bool:
    """Whether the broker accepts a connection now."""
    if settings.broker_url is None:
        return False
    try:
        with _sender(settings.broker_url.get_secret_value()).connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=_PUBLISH_TIMEOUT_S)
    except (OperationalError, KombuError, OSError):
        return False
    return True
