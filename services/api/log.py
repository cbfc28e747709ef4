"""Structured logs of the API: one JSON object a line on stderr, with the request id; headers are never logged."""

import logging
import sys

import structlog
from structlog.tracebacks import ExceptionDictTransformer

# Without the values of local variables: they hold tokens and passwords.
_traceback = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False, max_frames=30))


def configure() -> None:
    """Set up structlog for this process, and send the standard library's warnings the same way."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _traceback,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
