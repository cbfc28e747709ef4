"""``entropy_bound``: row entropy against its lower bound, and whether sparse patterns are of low rank too."""

from typing import Annotated

from pydantic import Field

from services.contracts.probes.common import ProbeParameters
from services.contracts.tables import HEAD, JOB, LAYER, SEQUENCE, Column, ResultTable, SummaryMetric


class EntropyBoundParameters(ProbeParameters):
    rank_rows: Annotated[
        int,
        Field(
            ge=2,
            le=2048,
            description="most rows of a pattern whose rank is taken, evenly spaced among the queries; ranks grow "
            "with it, so compare jobs that agree in it and in queries and length",
        ),
    ] = 128


# bits of the column obstacles: what keeps weights and inputs from bounding the scores
OBSTACLE_BITS = {"rotary": 1, "norm": 2, "clip": 4, "no matrices": 8}

TABLE = ResultTable(
    name="entropy_bound",
    comment="Entropy of attention rows, the least that their scores allow, and how sparse and of what rank patterns "
    "are, by head and sequence.",
    columns=(
        JOB,
        LAYER,
        HEAD,
        SEQUENCE,
        Column(
            "weight_norm", "float4", "‖W_K W_Qᵀ‖₂ of the head, without biases; NaN if the module has no such matrices"
        ),
        Column("input_norm", "float4", "‖X Xᵀ‖₂, X the inputs of the layer's attention at all positions, one a row"),
        Column("scaling", "float4", "factor of q·k in the scores"),
        Column("biased", "bool", "whether sigma_product is of matrices extended by the bias of queries, and X by ones"),
        Column(
            "obstacles",
            "int2",
            "why weights and inputs bound nothing, added up: "
            "1 rotary embedding, 2 norm of queries and keys, 4 clipping of them, 8 no matrix gives them; 0 if they do",
        ),
        Column(
            "sigma_product",
            "float4",
            "scaling ‖W_K W_Qᵀ‖₂ ‖X Xᵀ‖₂, an upper bound of every row's sigma; NaN where obstacles are not 0",
        ),
        Column("sigma_mean", "float4", "Euclidean norm of a row's centred scores, mean over the queries"),
        Column("sigma_max", "float4", "the same, largest"),
        Column("entropy_mean", "float4", "entropy of a row's weights over its keys in nats, mean over the queries"),
        Column("entropy_min", "float4", "the same, least"),
        Column(
            "log10_bound",
            "float4",
            "log10 of the mean over the queries of the least entropy in nats at the row's own sigma; -Infinity if 0",
        ),
        Column(
            "log10_product_bound",
            "float4",
            "log10 of the mean over the queries of the least entropy in nats at sigma_product; NaN where that is",
        ),
        Column("gap_mean", "float4", "entropy less its bound at the row's own sigma in nats, mean over the queries"),
        Column("gap_min", "float4", "the same, least"),
        Column(
            "tightness",
            "float4",
            "least sigma that a row's entropy needs over the sigma it has, mean over the queries; 1 at the bound; NaN "
            "if no row has two different scores",
        ),
        Column("top_1", "float4", "weight of a row's largest entry, mean over the queries"),
        Column("top_8", "float4", "weight of a row's eight largest entries, mean over the queries"),
        Column("top_5_percent", "float4", "weight of the largest twentieth of a row's keys, mean over the queries"),
        Column("stable_rank", "float4", "‖A‖_F² / ‖A‖₂² of the pattern of rank_rows queries"),
        Column("effective_rank", "float4", "exp of the entropy of σ² / Σ σ², σ the singular values of the same"),
        Column("rank_rows", "int2", "rows of the pattern behind the two ranks"),
    ),
)


def _metric(name: str, expression: str, low: float, width: float, bins: int, comment: str) -> SummaryMetric:
    return SummaryMetric(name, TABLE.name, expression, low, width, bins, comment)


def _log10(column: str) -> str:
    return f"log(nullif({column}, 0)::float8)"


METRICS = (
    _metric("log10_weight_norm", _log10("weight_norm"), -2.0, 0.1, 60, "log10 of ‖W_K W_Qᵀ‖₂ of a head"),
    _metric(
        "log10_input_norm", _log10("input_norm"), -1.0, 0.1, 90, "log10 of ‖X Xᵀ‖₂, X the inputs of a layer's attention"
    ),
    _metric(
        "log10_sigma",
        _log10("sigma_mean"),
        -2.0,
        0.1,
        60,
        "log10 of the mean over the queries of sigma, the norm of a row's centred scores",
    ),
    _metric(
        "log10_sigma_product",
        _log10("sigma_product"),
        -2.0,
        0.1,
        100,
        "log10 of sigma_product, an upper bound of sigma; undefined where weights and inputs give none",
    ),
    _metric(
        "obstacles",
        "obstacles",
        0.0,
        1.0,
        16,
        "why weights and inputs bound nothing, coded as in table entropy_bound; the same throughout a layer",
    ),
    _metric("entropy_mean", "entropy_mean", 0.0, 0.1, 120, "entropy of a row in nats, mean over the queries"),
    _metric("entropy_min", "entropy_min", 0.0, 0.1, 120, "entropy of a row in nats, least of the queries"),
    _metric(
        "log10_bound",
        "log10_bound",
        -100.0,
        1.0,
        101,
        "log10 of the mean over the queries of the least entropy in nats at a row's own sigma",
    ),
    _metric(
        "log10_product_bound",
        "log10_product_bound",
        -100.0,
        1.0,
        101,
        "log10 of the mean over the queries of the least entropy in nats at sigma_product",
    ),
    _metric(
        "gap_mean",
        "gap_mean",
        0.0,
        0.1,
        120,
        "entropy of a row less its bound at its own sigma in nats, mean over the queries",
    ),
    _metric(
        "gap_min",
        "gap_min",
        0.0,
        0.1,
        120,
        "entropy of a row less its bound at its own sigma in nats, least of the queries",
    ),
    _metric(
        "tightness",
        "tightness",
        0.0,
        0.02,
        51,
        "least sigma that a row's entropy needs over the sigma it has, mean over the queries; 1 at the bound",
    ),
    _metric("top_1", "top_1", 0.0, 0.02, 51, "weight of a row's largest entry, mean over the queries"),
    _metric("top_8", "top_8", 0.0, 0.02, 51, "weight of a row's eight largest entries, mean over the queries"),
    _metric(
        "top_5_percent",
        "top_5_percent",
        0.0,
        0.02,
        51,
        "weight of the largest twentieth of a row's keys, mean over the queries",
    ),
    _metric(
        "log10_stable_rank",
        _log10("stable_rank"),
        0.0,
        0.05,
        80,
        "log10 of the stable rank of the pattern of rank_rows queries",
    ),
    _metric(
        "log10_effective_rank",
        _log10("effective_rank"),
        0.0,
        0.05,
        80,
        "log10 of the effective rank of the pattern of rank_rows queries",
    ),
    _metric(
        "rank_rows", "rank_rows", 0.0, 16.0, 129, "rows of the pattern behind both ranks; the same throughout a job"
    ),
)
