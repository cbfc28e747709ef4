"""What PostgreSQL says to analysts, as a KeyholeError with its code and a next step."""

import psycopg
import structlog

from services.contracts.errors import ErrorCode, KeyholeError

_log = structlog.get_logger("keyhole.sql")

_INSUFFICIENT_RESOURCES = "53"  # SQLSTATE class: memory, disk, temporary files, connections
# Not the statement's fault: sessions that the server, or Keyhole for their memory or time, ended.
_ENDED = (psycopg.errors.AdminShutdown, psycopg.errors.CrashShutdown, psycopg.errors.CannotConnectNow)


def refusal(error: psycopg.Error) -> KeyholeError:
    """What PostgreSQL said, as a KeyholeError."""
    diagnosis = error.diag
    state = diagnosis.sqlstate
    if state is None and isinstance(error, psycopg.OperationalError):
        _log.warning("connection as analyst lost", error=str(error).strip())
        return KeyholeError(ErrorCode.UNAVAILABLE, "The connection to the database was lost.", "Try again.")
    message = diagnosis.message_primary or str(error).strip()
    if diagnosis.message_detail:
        message += f" ({diagnosis.message_detail})"
    if diagnosis.statement_position:
        message += f" at character {diagnosis.statement_position}"
    hint = diagnosis.message_hint or ""
    if isinstance(error, _ENDED):
        return KeyholeError(ErrorCode.UNAVAILABLE, message, "Try again, and ask for less at once.")
    if isinstance(error, psycopg.errors.ConfigurationLimitExceeded):
        hint = "The statement sorts, joins or makes up too much at once: filter by job_id, layer or head first."
    if state is not None and state.startswith(_INSUFFICIENT_RESOURCES):
        return KeyholeError(ErrorCode.SQL_LIMIT, message, hint or "Ask for less at once.")
    if isinstance(error, psycopg.errors.ObjectNotInPrerequisiteState):
        hint = "Analysts read and change nothing."  # PostgreSQL would advise a trigger on the view
    if isinstance(error, psycopg.errors.InsufficientPrivilege) and not hint:
        hint = "Analysts read the views of the schema analysis; docs/sql.md lists them."
    return KeyholeError(
        ErrorCode.SQL_REFUSED, message, hint or "docs/sql.md has the views, their columns and examples."
    )
