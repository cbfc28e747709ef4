"""How a child tells of its errors, and how shards' checks are put together."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import torch

from services.contracts.errors import RULES, ErrorCode
from workers.checks import combined
from workers.failure import classified


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ErrorCode.DISK_FULL),
        (psycopg.errors.DiskFull("could not extend file"), ErrorCode.DISK_FULL),
        (psycopg.OperationalError("server closed the connection"), ErrorCode.DATABASE),
        (MemoryError(), ErrorCode.OUT_OF_MEMORY),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), ErrorCode.OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), ErrorCode.OUT_OF_MEMORY),
        (ValueError("anything"), ErrorCode.UNEXPECTED),
    ],
)
def test_errors_get_the_code_that_says_what_to_do(error: Exception, code: ErrorCode) -> None:
    found, message, hint = classified(error)
    assert found is code
    assert type(error).__name__ in message
    assert hint


def test_only_a_lost_database_is_tried_again_unasked() -> None:
    assert [code for code, rule in RULES.items() if rule.retried] == [ErrorCode.DATABASE]


def test_the_checks_of_a_job_are_the_worst_or_the_mean_of_its_shards() -> None:
    shards = [{"max_residual": 1e-7, "loss_nats": 2.0}, {"max_residual": 3e-7, "loss_nats": 4.0}]
    assert combined(shards) == {"max_residual": 3e-7, "loss_nats": 3.0}


def test_a_log_on_a_full_disk_stops_nothing() -> None:
    statement = (
        "from workers import log\nimport structlog, logging\nlog.configure(worker='w')\n"
        "structlog.get_logger().info('lost')\nlogging.getLogger('x').warning('lost')\nprint('went on')"
    )
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", statement], stdout=subprocess.PIPE, stderr=full, text=True, env=os.environ
        )
    assert done.stdout == "went on\n"


def test_a_line_of_the_log_is_json_with_its_worker_from_every_thread() -> None:
    statement = (
        "from workers import log\nimport structlog, threading\nlog.configure(worker='w')\n"
        "t = threading.Thread(target=lambda: structlog.get_logger().info('hello', job=3))\nt.start(); t.join()"
    )
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, check=True)
    assert '"worker": "w"' in done.stderr
    assert '"job": 3' in done.stderr
