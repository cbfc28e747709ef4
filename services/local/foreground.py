"""`keyhole up` without --detach: stay with the stack, restart what dies, stop everything at Ctrl-C."""

import signal
import threading
import time
from collections.abc import Callable

from services.contracts.errors import ErrorCode, KeyholeError
from services.local.stack import LocalStack

LOOK_EVERY_S = 2.0
RESTARTS = 5  # within RESTARTS_WITHIN_S, then we give up: something is wrong that a restart does not mend
RESTARTS_WITHIN_S = 600.0


def stay(stack: LocalStack, say: Callable[[str], None]) -> None:
    """Return when a signal asks to stop (the stack is then down) or `keyhole down` stopped it from elsewhere."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    restarts: list[float] = []
    try:
        while not stop.wait(LOOK_EVERY_S):
            if not stack.exists():
                say("the stack was stopped by another command")
                return
            dead = stack.dead()
            if not dead:
                continue
            restarts = [at for at in restarts if time.monotonic() - at < RESTARTS_WITHIN_S]
            if len(restarts) >= RESTARTS:
                raise KeyholeError(
                    ErrorCode.UNAVAILABLE,
                    f"{', '.join(dead)} ended again; {RESTARTS} restarts did not help.",
                    f"See the logs in {stack.logs}, and run `keyhole doctor`.",
                )
            restarts.append(time.monotonic())
            say(f"{', '.join(dead)} ended; starting again")
            stack.up()
    finally:
        if stack.exists():
            stack.down()
