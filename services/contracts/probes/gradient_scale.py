"""``gradient_scale``: how far attention and advantage spread within each query (equation 14 of "Stuck in a Loop")."""

from typing import Annotated

from pydantic import Field

from services.contracts.probes.common import Credit, ProbeParameters
from services.contracts.tables import STATISTIC_KEY, Column, ResultTable, SummaryMetric


class GradientScaleParameters(ProbeParameters):
    credit: Annotated[
        Credit,
        Field(
            description="loss behind the advantage: 'sequence', the mean over the sequence, or 'own_token', "
            "the loss of the one prediction made at each query"
        ),
    ] = "sequence"


TABLE = ResultTable(
    name="gradient_scale",
    comment="Spread of attention and of advantage within each query: largest over median (equation 14).",
    columns=(
        *STATISTIC_KEY,
        Column("log10_d_a", "float4", "log10 of D_a, largest over median attention; Infinity if the median is 0"),
        Column(
            "log10_d_c",
            "float4",
            "log10 of D_c, largest over median absolute advantage; Infinity if the median is 0, NaN if all are 0",
        ),
    ),
)

METRICS = (
    SummaryMetric(
        "log10_d_a", TABLE.name, "log10_d_a", 0.0, 0.1, 200, "log10 of D_a, largest over median attention of a query"
    ),
    SummaryMetric(
        "log10_d_c",
        TABLE.name,
        "log10_d_c",
        0.0,
        0.1,
        200,
        "log10 of D_c, largest over median absolute advantage of a query",
    ),
    SummaryMetric(
        "d_a_exceeds_d_c",
        TABLE.name,
        "CASE WHEN log10_d_c = 'NaN' THEN 'NaN'::float8 WHEN log10_d_a > log10_d_c THEN 1 ELSE 0 END",
        0.0,
        1.0,
        2,
        "1 where D_a > D_c, else 0; its mean is the share of queries",
    ),
)
