"""Celery as a carrier of hints. Jobs and their states live in the database (see lifecycle.py)."""

from celery import Celery
from kombu.entity import Queue

from services.contracts.kinds import QUEUES
from services.contracts.settings import settings


def _broker_url() -> str:
    url = settings().broker_url
    return url.get_secret_value() if url else "memory://"


app = Celery("keyhole", broker=_broker_url(), include=["workers.tasks"])
app.conf.update(
    task_queues=[Queue(name) for name in QUEUES],
    task_default_queue="probe",
    task_serializer="json",
    accept_content=["json"],
    task_ignore_result=True,
    task_acks_late=False,  # the reconciler sends lost hints again; a redelivery after an hour is not wanted
    worker_prefetch_multiplier=1,
    worker_disable_prefetch=True,  # a busy worker must not hold hints that an idle one could follow
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={"socket_keepalive": True, "health_check_interval": 10},
)
