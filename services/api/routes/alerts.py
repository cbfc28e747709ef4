"""/v1/alerts: rules of watches that were met."""

from datetime import datetime
from typing import Annotated, Any, Literal

import pyarrow as pa
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from db.repositories import alerts
from db.repositories.alerts import AlertFilter
from services.api import cursors, formats
from services.api.alert_views import alert_view
from services.api.auth import Reader, Submitter
from services.api.database import Database
from services.contracts.watches import Acknowledged, Acknowledgement, AlertPage, AlertView

router = APIRouter(prefix="/v1/alerts", tags=["watches"])

MOST_OF_FILE = 100_000
Number = Annotated[int | None, Query(ge=1, le=2**31 - 1)]
Index = Annotated[int | None, Query(ge=0, le=32_767)]
_FILES: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}, "text/csv": {}}}}
_TYPES = {
    int: pa.int64(),
    float: pa.float64(),
    datetime: pa.timestamp("us", tz="UTC"),
    str: pa.string(),
}


@router.get("", response_model=AlertPage, responses=_FILES)
def list_alerts(
    caller: Reader,
    conn: Database,
    watch: Number = None,
    run: Number = None,
    job: Number = None,
    metric: Annotated[str | None, Query(max_length=100)] = None,
    layer: Index = None,
    head: Index = None,
    since: Annotated[datetime | None, Query(description="raised at this time or later")] = None,
    acknowledged: bool | None = None,
    after: Annotated[int | None, Query(ge=0, le=2**63 - 1, description="oldest first, above this number")] = None,
    cursor: Annotated[str | None, Query(max_length=100, description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    format: Annotated[
        Literal["json", "csv"],
        Query(
            description=f"csv: all that match in one file, without pages; of more than {MOST_OF_FILE:,} the newest, "
            "with `after` the oldest above it"
        ),
    ] = "json",
) -> AlertPage | Response:
    """Alerts, newest first; with `after`, those above a number, oldest first, for whoever follows them."""
    condition = AlertFilter(watch, run, job, metric, layer, head, since, acknowledged)
    if format == "csv":
        return _csv([alert_view(row) for row in alerts.page(conn, condition, after_id=after, limit=MOST_OF_FILE)])
    before_id = cursors.decode(cursor) if cursor else None
    rows = alerts.page(conn, condition, before_id=before_id, after_id=after, limit=limit + 1)
    items = [alert_view(row) for row in rows[:limit]]
    more = len(rows) > limit and after is None
    return AlertPage(items=items, next=cursors.encode(items[-1].id) if more else None)


@router.post("/acknowledge")
def acknowledge(body: Acknowledgement, caller: Submitter, conn: Database) -> Acknowledged:
    """Say that alerts were seen: those of these numbers, and all of a watch so far."""
    return Acknowledged(acknowledged=alerts.acknowledge(conn, body.alerts, body.watch, caller.token_id))


def _csv(items: list[AlertView]) -> StreamingResponse:
    schema = pa.schema([(name, _type(field.annotation)) for name, field in AlertView.model_fields.items()])
    batch = pa.RecordBatch.from_pylist([each.model_dump() for each in items], schema=schema)
    return StreamingResponse(formats.encoded("csv", schema, [batch]), media_type=formats.MEDIA_TYPES["csv"])


def _type(annotation: Any) -> pa.DataType:
    chosen = next((each for each in _TYPES if each is annotation or each in getattr(annotation, "__args__", ())), str)
    return _TYPES[chosen]
