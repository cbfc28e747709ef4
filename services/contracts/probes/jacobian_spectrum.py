"""``jacobian_spectrum``: singular values of each query's Jacobian (equations 23 to 25 of "Stuck in a Loop")."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.parameters import Parameters
from services.contracts.probes.common import ProbeParameters, QueryRange
from services.contracts.tables import HEAD, JOB, LAYER, SEQUENCE, STATISTIC_KEY, Column, ResultTable, SummaryMetric


class Site(Parameters):
    layer: Annotated[int, Field(ge=0, le=32_767, description="layer, 0-based")]
    head: Annotated[int, Field(ge=0, le=32_767, description="query head, 0-based")]


class JacobianSpectrumParameters(ProbeParameters):
    sites: Annotated[
        list[Site] | None,
        Field(
            min_length=1,
            max_length=4096,
            description="heads to measure, each with its layer; none means every head of the model",
        ),
    ] = None
    queries: QueryRange = Field(default=QueryRange(step=1), description="which query positions are measured")
    check_queries: Annotated[
        int,
        Field(
            ge=1,
            le=1024,
            description="queries per head and sequence whose Jacobian is compared with that of autograd",
        ),
    ] = 1

    @model_validator(mode="after")
    def _no_site_twice(self) -> Self:
        named = [(site.layer, site.head) for site in self.sites or []]
        twice = sorted({site for site in named if named.count(site) > 1})
        if twice:
            raise ValueError(f"sites name layer {twice[0][0]}, head {twice[0][1]} more than once")
        return self

    def require_fit(self, layers: int, heads: int) -> None:
        unknown = [site for site in self.sites or () if site.layer >= layers or site.head >= heads]
        if unknown:
            raise KeyholeError(
                ErrorCode.INVALID_REQUEST,
                f"The model has no layer {unknown[0].layer}, head {unknown[0].head}.",
                f"It has layers 0 to {layers - 1} with query heads 0 to {heads - 1} each; change `sites`.",
            )


TABLE = ResultTable(
    name="jacobian_spectrum",
    comment="Singular values of dy/dq in numbers, one row per query (equations 24 and 25).",
    columns=(
        *STATISTIC_KEY,
        Column("effective_rank", "float4", "effective rank of the squared singular values; NaN where J = 0"),
        Column("effective_rank_sigma", "float4", "effective rank of the singular values themselves; NaN where J = 0"),
        Column("participation_ratio", "float4", "(sum of sigma^2)^2 / sum of sigma^4; NaN where J = 0"),
        Column("modes_above_1e_2", "int2", "singular values above 1e-2 of the largest; 0 where J = 0"),
        Column("modes_above_1e_3", "int2", "singular values above 1e-3 of the largest; 0 where J = 0"),
        Column("sigma_max", "float4", "largest singular value of J, the scores' scaling included"),
        Column("top_attention", "float4", "largest attention weight of a key in the row"),
    ),
)

MODE_TABLE = ResultTable(
    name="jacobian_mode",
    comment="Singular values relative to the largest, over the queries of a sequence: curves and bands of Figure 3.",
    columns=(
        JOB,
        LAYER,
        HEAD,
        SEQUENCE,
        Column("mode", "int2", "rank of the singular value, 0 for the largest"),
        Column("queries", "int4", "queries with J other than 0, which the rest of the row is taken over"),
        Column(
            "mean", "float4", "mean of sigma / sigma_max; NaN without such queries. Below 3e-8 it is rounding error"
        ),
        Column("q05", "float4", "5 % quantile of sigma / sigma_max"),
        Column("q25", "float4", "25 % quantile of sigma / sigma_max"),
        Column("median", "float4", "median of sigma / sigma_max"),
        Column("q75", "float4", "75 % quantile of sigma / sigma_max"),
        Column("q95", "float4", "95 % quantile of sigma / sigma_max"),
    ),
)


def _modes(column: str, what: str) -> SummaryMetric:
    defined = f"CASE WHEN effective_rank = 'NaN' THEN 'NaN'::float8 ELSE {column} END"
    return SummaryMetric(
        column,
        TABLE.name,
        defined,
        0.0,
        1.0,
        513,
        f"number of singular values of a query's Jacobian above {what} of the largest",
    )


METRICS = (
    SummaryMetric(
        "effective_rank",
        TABLE.name,
        "effective_rank",
        0.0,
        0.25,
        400,
        "effective rank of the squared singular values of a query's Jacobian",
    ),
    SummaryMetric(
        "effective_rank_sigma",
        TABLE.name,
        "effective_rank_sigma",
        0.0,
        0.5,
        400,
        "effective rank of the singular values of a query's Jacobian, not squared",
    ),
    SummaryMetric(
        "participation_ratio",
        TABLE.name,
        "participation_ratio",
        0.0,
        0.25,
        400,
        "(sum of sigma^2)^2 / sum of sigma^4, sigma the singular values of a query's Jacobian",
    ),
    _modes("modes_above_1e_2", "1e-2"),
    _modes("modes_above_1e_3", "1e-3"),
    SummaryMetric(
        "log10_sigma_max",
        TABLE.name,
        "log(nullif(sigma_max, 0)::float8)",
        -8.0,
        0.1,
        160,
        "log10 of the largest singular value of a query's Jacobian",
    ),
    SummaryMetric("top_attention", TABLE.name, "top_attention", 0.0, 0.01, 101, "largest attention weight of a query"),
    SummaryMetric(
        "effective_rank_below_10",
        TABLE.name,
        "CASE WHEN effective_rank = 'NaN' THEN 'NaN'::float8 WHEN effective_rank < 10 THEN 1 ELSE 0 END",
        0.0,
        1.0,
        2,
        "1 where effective_rank is below 10, else 0; its mean is the share of queries",
    ),
)
