"""Alerts posted to a real server: taken, refused, redirected, failing for a while, silent."""

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import SecretStr

from db.repositories import alert_deliveries, runs
from db.repositories.runs import Metric
from services.api import delivering, webhooks
from services.api.delivering import deliver
from services.api.watching import judge_all
from services.contracts.states import JobState
from tests.integration.new_runs import trained_run
from tests.integration.watches.conftest import run_looks

SECRET = "a secret of the team"


@dataclass
class Receiver:
    """Answers with the statuses given, then with 200."""

    port: int = 0
    statuses: list[int] = field(default_factory=list)
    wait_s: float = 0.0
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook/token"

    def bodies(self) -> list[dict]:
        return [json.loads(body) for _, _, body in self.got]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    state = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.got.append((self.path, dict(self.headers), body))
            time.sleep(state.wait_s)
            status = state.statuses.pop(0) if state.statuses else 200
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"http://127.0.0.1:{state.port}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield state
    server.shutdown()
    server.server_close()


@pytest.fixture
def hooked(watched, receiver):
    """A watch whose alerts go to the receiver, and a way to raise some."""
    allowed = watched.settings.model_copy(update={"webhook_hosts": f"127.0.0.1:{receiver.port}"})
    object.__setattr__(watched, "settings", allowed)
    run_id = trained_run(watched.conn, state=JobState.RUNNING, losses=[(0, 7.0)])
    # the served API has the settings it was started with, so that the watch is stored as one with the new ones would
    watch = watched.create(target=f"run:{run_id}", rules=["loss_nats above 5", "gradient_norm above 5"], name="hooked")
    watched.conn.execute(
        "UPDATE keyhole.watch SET body = body || jsonb_build_object('webhook', %s::text)", (receiver.url,)
    )

    def raise_alerts(step: int, *metrics: str) -> None:
        runs.write(watched.conn, run_id, [Metric(step, metric, 9.0) for metric in metrics or ("loss_nats",)])
        watched.look(judge_all)
        runs.write(watched.conn, run_id, [Metric(step + 1, metric, 1.0) for metric in metrics or ("loss_nats",)])
        watched.look(judge_all)

    return watch, raise_alerts


def test_alerts_of_a_watch_are_posted_together_with_words_and_numbers(watched, receiver, hooked):
    watch, raise_alerts = hooked
    raise_alerts(10, "loss_nats", "gradient_norm")
    watched.look(deliver)
    ((path, headers, _),) = receiver.got
    assert path == "/hook/token"
    assert headers["Host"] == f"127.0.0.1:{receiver.port}"
    assert headers["Content-Type"] == "application/json"
    assert "X-Keyhole-Signature" not in headers
    (body,) = receiver.bodies()
    assert body["watch"] == {"id": watch["id"], "name": "hooked", "target": watch["target"]}
    assert body["alerts"] == json.loads(json.dumps([sent_as(each) for each in watched.alerts()]))
    assert "2 alerts" in body["text"] and "loss_nats is 9 at step 10" in body["text"]
    assert all(each["delivered_at"] and each["deliveries"] == 1 for each in watched.alerts())
    watched.deliver()
    assert len(receiver.got) == 1, "what was taken is not sent again"


def sent_as(alert: dict) -> dict:
    """The alert as it was when it was on its way."""
    return alert | {"delivered_at": None, "delivery_problem": None}


def test_a_secret_signs_time_and_body(watched, receiver, hooked):
    _, raise_alerts = hooked
    raise_alerts(10)
    watched.look(deliver, webhook_secret=SecretStr(SECRET))
    ((_, headers, body),) = receiver.got
    signed = headers["X-Keyhole-Timestamp"].encode() + b"." + body
    expected = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert headers["X-Keyhole-Signature"] == f"sha256={expected}"


def test_a_failing_receiver_is_tried_again_later_and_then_taken(watched, receiver, hooked):
    _, raise_alerts = hooked
    receiver.statuses = [500]
    raise_alerts(10)
    watched.look(deliver)
    (alert,) = watched.alerts()
    assert (alert["delivery_problem"], alert["deliveries"]) == ("answered 500 Internal Server Error", 1)
    watched.look(deliver)
    assert len(receiver.got) == 1, "not before its wait is over"
    watched.deliver()
    (alert,) = watched.alerts()
    assert (alert["delivery_problem"], alert["deliveries"]) == (None, 2)
    assert alert["delivered_at"]


def test_what_died_with_its_senders_every_time_is_given_up(watched, receiver, hooked):
    _, raise_alerts = hooked
    raise_alerts(10)
    taken = []
    for _ in range(delivering.TRIES + 3):
        watched.conn.execute("UPDATE keyhole.alert SET deliver_at = clock_timestamp() WHERE deliver_at IS NOT NULL")
        taken.append(alert_deliveries.take(watched.conn, most=100, waits_s=delivering.WAITS_S))
    assert [parcel is not None for parcel in taken] == [True] * delivering.TRIES + [False] * 3
    (alert,) = watched.alerts()
    assert alert["delivery_problem"].startswith(f"given up after {delivering.TRIES} tries: ")


def test_what_fails_every_time_is_given_up(watched, receiver, hooked):
    _, raise_alerts = hooked
    receiver.statuses = [503] * 100
    raise_alerts(10)
    for _ in range(delivering.TRIES + 3):
        watched.deliver()
    assert len(receiver.got) == delivering.TRIES
    (alert,) = watched.alerts()
    assert alert["delivery_problem"] == f"given up after {delivering.TRIES} tries: answered 503 Service Unavailable"


def test_redirects_are_not_followed(watched, receiver, hooked):
    _, raise_alerts = hooked
    receiver.statuses = [302]
    raise_alerts(10)
    watched.look(deliver)
    assert [path for path, _, _ in receiver.got] == ["/hook/token"]
    assert "redirects are not followed" in watched.alerts()[0]["delivery_problem"]


def test_a_receiver_that_does_not_answer_is_not_waited_for(watched, receiver, hooked, monkeypatch):
    _, raise_alerts = hooked
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 0.3)
    receiver.wait_s = 3.0
    raise_alerts(10)
    watched.look(deliver)
    assert "no answer within" in watched.alerts()[0]["delivery_problem"]


def test_a_port_where_nobody_listens_is_told(watched, receiver, hooked):
    _, raise_alerts = hooked
    watched.conn.execute("""UPDATE keyhole.watch SET body = body || '{"webhook": "http://127.0.0.1:1/"}'""")
    raise_alerts(10)
    watched.look(deliver, webhook_hosts="127.0.0.1:1")
    assert "ConnectError" in watched.alerts()[0]["delivery_problem"]


def test_a_host_that_is_no_longer_listed_gets_nothing(watched, receiver, hooked):
    _, raise_alerts = hooked
    raise_alerts(10)
    watched.look(deliver, webhook_hosts="hooks.example.com")
    assert not receiver.got
    assert "not among the webhook hosts" in watched.alerts()[0]["delivery_problem"]


def test_senders_at_the_same_time_post_once(watched, receiver, hooked):
    _, raise_alerts = hooked
    receiver.wait_s = 0.2
    for step in range(10, 30, 2):
        raise_alerts(step)
    barrier = threading.Barrier(3)

    def send() -> None:
        barrier.wait(20)
        run_looks(watched.settings, [deliver])

    threads = [threading.Thread(target=send) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    posted = [alert["id"] for body in receiver.bodies() for alert in body["alerts"]]
    assert sorted(posted) == sorted(each["id"] for each in watched.alerts())
    assert len(posted) == len(set(posted)) == 10


def test_a_sender_that_dies_leaves_the_alert_to_the_next_try(watched, receiver, hooked, monkeypatch):
    _, raise_alerts = hooked
    raise_alerts(10)

    class Killed(BaseException):
        pass

    async def dies(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(BaseException) as error:  # what asyncio makes of it
        patched.setattr(webhooks, "post", dies)
        watched.look(deliver)
    assert isinstance(error.value, Killed | BaseExceptionGroup)
    assert not receiver.got
    watched.deliver()
    assert len(receiver.got) == 1
    assert watched.alerts()[0]["delivered_at"]


@pytest.mark.parametrize(
    ("webhook", "told"),
    [
        ("https://hooks.example.com/T0/secret", "no webhook host is allowed here"),
        ("ftp://hooks.example.com/", "webhook reads https"),
        ("https://user:password@hooks.example.com/", "without name and password"),
        ("https://hooks.example.com:99999/", "ort out of range"),
    ],
)
def test_a_webhook_that_is_not_allowed_is_refused_at_submission(watched, webhook, told):
    run_id = trained_run(watched.conn, state=JobState.RUNNING)
    answer = watched.create(422, target=f"run:{run_id}", rules=["loss_nats above 5"], webhook=webhook)
    assert told in answer["detail"]
    assert "T0/secret" not in json.dumps(answer)


def test_nobody_can_read_the_address_of_a_webhook(watched, receiver, hooked):
    watch, _ = hooked
    answers = [watched.reader.get(path).text for path in ("/v1/watches", f"/v1/watches/{watch['id']}")]
    assert all("hook/token" not in answer for answer in answers)
    assert watched.watch(watch["id"])["webhook_host"] == f"127.0.0.1:{receiver.port}"
