"""Exit codes of the ``keyhole`` command, the same for every subcommand."""

from enum import IntEnum


class ExitCode(IntEnum):
    OK = 0
    ERROR = 1  # Keyhole refused, or something failed; the message says what
    USAGE = 2  # the command line itself was wrong
    JOB_FAILED = 3  # the job that was waited for failed
    JOB_CANCELLED = 4  # the job that was waited for was cancelled
    UNREACHABLE = 5  # API, database or broker do not answer
    INTERRUPTED = 130  # Ctrl-C: we stopped waiting, the job goes on
