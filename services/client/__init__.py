"""Keyhole from Python: submit jobs, wait for them, take their tables as pandas or Arrow.

    from services.client import Keyhole
    job = Keyhole().submit("gradient_scale", model="builtin:smollm2-135m-instruct", dataset="builtin:python-docs")
    table = job.wait().frame("gradient_scale")

KeyholeError            what the API refused, with code, message and hint
├── Unreachable         nobody answered
├── JobFailed           a job that was waited for failed; carries the traceback
├── JobCancelled        a job that was waited for was cancelled
└── SuiteFailed         some jobs of a suite that was waited for did not succeed
"""

from services.client.checkpoint import Checkpoint
from services.client.connection import Unreachable
from services.client.job import Job, JobCancelled, JobFailed
from services.client.keyhole import Keyhole
from services.client.run import Run
from services.client.suite import Suite, SuiteFailed
from services.client.sweep import Sweep
from services.client.watch import Watch
from services.contracts.errors import KeyholeError

__all__ = [
    "Checkpoint",
    "Job",
    "JobCancelled",
    "JobFailed",
    "Keyhole",
    "KeyholeError",
    "Run",
    "Suite",
    "SuiteFailed",
    "Sweep",
    "Unreachable",
    "Watch",
]
