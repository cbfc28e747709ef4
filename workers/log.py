"""Structured logs of worker, child and reconciler: one JSON object a line on stderr, with worker, job and attempt.

A log that cannot be written, on a full disk say, must not stop the work: such lines are dropped.
"""

import logging
import sys
from contextlib import suppress
from typing import Any

import structlog
from structlog.tracebacks import ExceptionDictTransformer


class _ToStderr:
    """A logger that loses a line rather than fail."""

    def msg(self, message: str) -> None:
        with suppress(OSError, ValueError):  # no space left, or stderr is closed
            print(message, file=sys.stderr, flush=True)

    debug = info = warning = error = critical = exception = log = msg


def configure(**context: Any) -> None:
    """Set up structlog for this process; ``context`` stands in every line, whatever the thread."""
    structlog.configure(
        processors=[
            lambda logger, method, event: {**context, **event},
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False, max_frames=30)),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: _ToStderr(),
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    logging.raiseExceptions = False  # the same for the standard library's lines
