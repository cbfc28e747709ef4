"""The closed list of error codes, and the one exception that carries them.

KeyholeError            anything a user can meet; has a code, a message, a hint and, in the API, an HTTP status
"""

from dataclasses import dataclass
from enum import StrEnum


class ErrorCode(StrEnum):
    # what the request asked for
    INVALID_REQUEST = "invalid_request"
    INVALID_SOURCE = "invalid_source"
    UNKNOWN_KIND = "unknown_kind"
    NOT_FOUND = "not_found"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    CONFLICT = "conflict"
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch"
    SQL_REFUSED = "sql_refused"
    SQL_LIMIT = "sql_limit"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"
    # the model
    MODEL_NOT_FOUND = "model_not_found"
    MODEL_REFUSED = "model_refused"
    MODEL_CHANGED = "model_changed"
    MODEL_UNSUPPORTED = "model_unsupported"
    PARITY_FAILED = "parity_failed"
    CHECKPOINT_DAMAGED = "checkpoint_damaged"
    # the data set
    DATASET_NOT_FOUND = "dataset_not_found"
    DATASET_INVALID = "dataset_invalid"
    DATASET_CHANGED = "dataset_changed"
    DATASET_TOO_SHORT = "dataset_too_short"
    TOKENS_OUT_OF_RANGE = "tokens_out_of_range"
    # the computation
    SELF_CHECK_FAILED = "self_check_failed"
    DIVERGED = "diverged"
    OUT_OF_MEMORY = "out_of_memory"
    DISK_FULL = "disk_full"
    TIME_LIMIT = "time_limit"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    DATABASE = "database"
    UNEXPECTED = "unexpected"


@dataclass(frozen=True)
class CodeRule:
    meaning: str
    http_status: int = 422
    retried: bool = False  # whether a job that met it is attempted again without being asked


RULES: dict[ErrorCode, CodeRule] = {
    ErrorCode.INVALID_REQUEST: CodeRule("the request does not match its schema"),
    ErrorCode.INVALID_SOURCE: CodeRule("a model or dataset source is not of a known form, or not allowed"),
    ErrorCode.UNKNOWN_KIND: CodeRule("no job kind of that name"),
    ErrorCode.NOT_FOUND: CodeRule("no such thing", 404),
    ErrorCode.UNAUTHORIZED: CodeRule("no token, or one that is unknown, expired or revoked", 401),
    ErrorCode.FORBIDDEN: CodeRule("the token lacks the scope", 403),
    ErrorCode.CONFLICT: CodeRule("the job's state does not allow this", 409),
    ErrorCode.IDEMPOTENCY_MISMATCH: CodeRule("the idempotency key was used with another body", 409),
    ErrorCode.SQL_REFUSED: CodeRule("PostgreSQL refused the statement", 400),
    ErrorCode.SQL_LIMIT: CodeRule("the statement ran into the time or row limit", 400),
    ErrorCode.UNAVAILABLE: CodeRule("database, broker or model hub does not answer", 503),
    ErrorCode.INTERNAL: CodeRule("a defect of Keyhole", 500),
    ErrorCode.MODEL_NOT_FOUND: CodeRule("no model at that source"),
    ErrorCode.MODEL_REFUSED: CodeRule("the model's files failed the safety vetting"),
    ErrorCode.MODEL_CHANGED: CodeRule("the model's files are not those that were submitted"),
    ErrorCode.MODEL_UNSUPPORTED: CodeRule("the architecture cannot be measured"),
    ErrorCode.PARITY_FAILED: CodeRule("logits through the seam differ from the model's own"),
    ErrorCode.CHECKPOINT_DAMAGED: CodeRule("bytes of a stored checkpoint are lost or not those that were stored"),
    ErrorCode.DATASET_NOT_FOUND: CodeRule("no data set at that source"),
    ErrorCode.DATASET_INVALID: CodeRule("the data set cannot be read as its form says"),
    ErrorCode.DATASET_CHANGED: CodeRule("the data set's files are not those that were submitted"),
    ErrorCode.DATASET_TOO_SHORT: CodeRule("too few tokens for the sequences asked for"),
    ErrorCode.TOKENS_OUT_OF_RANGE: CodeRule("token ids beyond the model's vocabulary"),
    ErrorCode.SELF_CHECK_FAILED: CodeRule("the probe's own run-time check failed"),
    ErrorCode.DIVERGED: CodeRule("the training run's loss or gradient is no number, or stayed far above its best"),
    ErrorCode.OUT_OF_MEMORY: CodeRule("the device or host ran out of memory"),
    ErrorCode.DISK_FULL: CodeRule("no space is left for the database or on the worker"),
    ErrorCode.TIME_LIMIT: CodeRule("the job's time limit passed"),
    ErrorCode.ATTEMPTS_EXHAUSTED: CodeRule("the job's workers died as often as is allowed"),
    ErrorCode.DATABASE: CodeRule("the database was lost while the job ran", 503, retried=True),
    ErrorCode.UNEXPECTED: CodeRule("an error nobody foresaw; the traceback says where", 500),
}


class KeyholeError(Exception):
    """Something a user did or met: says what was wrong, with the value, and in ``hint`` what to do next."""

    def __init__(self, code: ErrorCode, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()
