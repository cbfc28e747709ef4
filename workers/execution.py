"""The child process: ``python -m workers.execution DEVICE REPORT_FD ORDERS_FD``, started by supervisor.py.

It is told the token of one attempt after the other, each a line on the orders pipe, and serves them in turn; a model
stays loaded in between. The pipe's end means that nothing more will come, or that the worker is gone: it leaves. An
error ends the process, once it is reported: whatever it left behind goes with it.
"""

import json
import os
import queue
import sys
import threading
import time
from contextlib import suppress
from uuid import UUID

from db.repositories import attempts
from services.contracts.settings import Settings, settings
from workers import log
from workers.failure import Failure
from workers.lifecycle import Ledger

_BEAT_S = 1.0

_idle = threading.Event()  # between two attempts


def main() -> None:
    device, report, orders = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    tokens: queue.SimpleQueue[UUID] = queue.SimpleQueue()
    _idle.set()
    threading.Thread(target=_listen, args=(orders, tokens), daemon=True).start()
    threading.Thread(target=_beat, args=(report,), daemon=True).start()
    try:
        _serve(device, report, tokens, settings())
    except Exception as error:  # whatever it was, the user gets to read it
        _report_failure(report, Failure.of(error))
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(0)  # without waiting for threads of libraries; the error, if any, is in the report


def _serve(device: str, report: int, tokens: queue.SimpleQueue[UUID], configuration: Settings) -> None:
    """Serve attempts until the process ends."""
    token = tokens.get()
    _idle.clear()
    log.configure(attempt=str(token))

    from workers import measuring  # here and not above: torch takes seconds, and the beat goes by now
    from workers.bench import Bench

    bench = Bench(device, configuration)
    assert configuration.database_url is not None
    url = configuration.database_url.get_secret_value()
    patience_s = configuration.life.lease_s + configuration.life.database_grace_s
    while True:
        ledger = Ledger(url, patience_s, attempts.connection_name(token))
        if ledger.transact(lambda conn: attempts.queue_of(conn, token)) == "training":  # noqa: B023  # called at once
            from workers import training_job

            bench.clear()
            training_job.run(token, device, configuration, ledger)
        else:
            measuring.run(token, bench, ledger)
        ledger.close()
        _idle.set()
        _send(report, '{"type": "done"}')
        token = tokens.get()
        _idle.clear()
        log.configure(attempt=str(token))


def _listen(orders: int, tokens: queue.SimpleQueue[UUID]) -> None:
    """Take orders; end this process when the worker is gone, or has no more of them."""
    with os.fdopen(orders) as lines:
        for line in lines:
            _idle.clear()  # at once: an end of the pipe that follows finds work under way
            tokens.put(UUID(line.strip()))
    os._exit(0 if _idle.is_set() else 1)


def _report_failure(report: int, failure: Failure) -> None:
    with suppress(OSError):  # the log may be on the disk that is full
        print(failure.traceback, file=sys.stderr, flush=True)
    told = {"code": failure.code, "message": failure.message, "hint": failure.hint, "traceback": failure.traceback}
    _send(report, json.dumps({"type": "error", **told}))


def _beat(report: int) -> None:
    while True:
        _send(report, '{"type": "beat"}')
        time.sleep(_BEAT_S)


_report_lock = threading.Lock()


def _send(report: int, line: str) -> None:
    data = line.encode() + b"\n"
    with _report_lock, suppress(BrokenPipeError):
        while data:
            data = data[os.write(report, data) :]


if __name__ == "__main__":
    main()
