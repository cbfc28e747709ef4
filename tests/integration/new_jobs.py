"""A submission as the API would insert it, for tests that need a job in the database and no API."""

from dataclasses import replace
from typing import Any

from db.repositories.jobs import NewJob

_SUBMISSION = NewJob(
    kind="gradient_scale",
    version=1,
    queue="probe",
    priority=0,
    label="a label",
    model_source="builtin:smollm2-135m-instruct",
    model_identity="model",
    dataset_source="builtin:python-docs",
    dataset_identity="data",
    parameters={"length": 64},
    reuse_key="key",
    time_limit_s=3600,
    max_attempts=3,
    submitted_by=None,
    shards=[(0, 1)],
)


def submission(**changes: Any) -> NewJob:
    """One shard of one sequence, unless changed."""
    return replace(_SUBMISSION, **changes)
