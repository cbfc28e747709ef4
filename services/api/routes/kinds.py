"""/v1/kinds: what can be submitted, with parameters, tables and metrics."""

from fastapi import APIRouter

from services.api.auth import Reader
from services.contracts.jobs import KindView
from services.contracts.kinds import KINDS, Kind

router = APIRouter(prefix="/v1/kinds", tags=["kinds"])


@router.get("")
def list_kinds(caller: Reader) -> list[KindView]:
    """Every kind of job."""
    return [kind_view(kind) for kind in KINDS.values()]


def kind_view(kind: Kind) -> KindView:
    return KindView(
        name=kind.name,
        queue=kind.queue,
        version=kind.version,
        summary=kind.summary,
        parameters_schema=kind.parameters.model_json_schema(),
        defaults=kind.parameters().model_dump(mode="json"),
        tables=[table.name for table in kind.tables],
        metrics=[metric.name for metric in kind.metrics],
    )
