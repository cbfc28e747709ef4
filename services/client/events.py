"""Follow a job's history to its end, across lost connections and restarts of the API."""

import time
from collections.abc import Iterator

import httpx_sse

from services.client.connection import Connection, Unreachable
from services.contracts.jobs import EventView, JobDetail

_READ_TIMEOUT_S = 45.0  # the server sends a sign of life every 15 s
_PATIENCE_S = 60.0  # how long an API may be away before following it is given up
_POLL_S = 2.0
_MUTE_STREAMS = 2  # streams that brought nothing before a proxy is suspected of holding them back


def follow(connection: Connection, job_id: int, last_id: int = 0) -> Iterator[EventView]:
    """Yield the events after ``last_id`` as they happen; return when the job has ended and all were yielded.

    Streams by SSE and reconnects with Last-Event-ID; where streams do not get through, asks every two seconds.
    Raises Unreachable after a minute without any answer.
    """
    mute_streams, away_since = 0, None
    while True:
        told = False
        try:
            if mute_streams < _MUTE_STREAMS:
                for event in _streamed(connection, job_id, last_id):
                    told, last_id = True, event.id
                    yield event
            ended = job(connection, job_id).state.terminal
            for event in listed(connection, job_id, last_id):
                last_id = event.id
                yield event
            away_since = None
        except Unreachable:
            away_since = away_since or time.monotonic()
            if time.monotonic() - away_since > _PATIENCE_S:
                raise
            ended = False
        if ended:
            return
        mute_streams = 0 if told else mute_streams + 1
        time.sleep(_POLL_S if mute_streams >= _MUTE_STREAMS else 0.3)


def job(connection: Connection, job_id: int) -> JobDetail:
    return JobDetail.model_validate_json(connection.request("GET", f"/v1/jobs/{job_id}").content)


def _streamed(connection: Connection, job_id: int, last_id: int) -> Iterator[EventView]:
    """Events until the stream ends; a stream cut short ends too, for the caller looks whether the job has ended."""
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store", "Last-Event-ID": str(last_id)}
    path = f"/v1/jobs/{job_id}/events"
    try:
        with connection.stream("GET", path, headers=headers, read_timeout_s=_READ_TIMEOUT_S) as response:
            for message in httpx_sse.EventSource(response).iter_sse():
                if message.id and message.data:
                    yield EventView.model_validate_json(message.data)
    except (Unreachable, httpx_sse.SSEError):
        return


def listed(connection: Connection, job_id: int, last_id: int) -> Iterator[EventView]:
    while True:
        answer = connection.request(
            "GET", f"/v1/jobs/{job_id}/events", headers={"Accept": "application/json"}, params={"after": last_id}
        )
        events = [EventView.model_validate(item) for item in answer.json()]
        if not events:
            return
        last_id = events[-1].id
        yield from events
