"""/v1/jobs/{id}/summary and /tables: what a job measured."""

from typing import Annotated

from fastapi import APIRouter, Query

from db.repositories import summaries
from services.api.auth import Reader
from services.api.database import Database
from services.api.routes.jobs import JobId, found
from services.contracts.jobs import SummaryRow

router = APIRouter(prefix="/v1/jobs", tags=["results"])


@router.get("/{job_id}/summary")
def job_summary(
    job_id: JobId,
    caller: Reader,
    conn: Database,
    metric: Annotated[str | None, Query(max_length=100)] = None,
    level: Annotated[summaries.Level | None, Query(description="all three unless told")] = None,
) -> list[SummaryRow]:
    """Distributions of the job's metrics by head, by layer and for the whole model; empty until it has succeeded."""
    found(conn, job_id)
    return summaries.of_job(conn, job_id, metric, level)
