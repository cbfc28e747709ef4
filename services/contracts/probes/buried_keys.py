"""``buried_keys``: keys on which several heads agree by advantage, however little they attend to them.

"Buried Keys Are Measurable" in "Stuck in a Loop".
"""

from typing import Annotated, Literal

from pydantic import Field

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.common import Credit, ProbeParameters, QueryRange
from services.contracts.tables import HEAD, JOB, LAYER, QUERY, SEQUENCE, Column, ResultTable, SummaryMetric


class SparseQueryRange(QueryRange):
    """Every sixteenth query unless another step is given: each query has many rows in this kind."""

    step: Annotated[int, Field(ge=1, description="distance between queries")] = 16


class BuriedKeysParameters(ProbeParameters):
    queries: SparseQueryRange = Field(  # type: ignore[assignment]  # narrower: the same fields with another default
        default=SparseQueryRange(), description="which query positions are measured"
    )
    credit: Annotated[
        Credit,
        Field(
            description="loss behind the advantage: 'sequence', the mean over the sequence, or 'own_token', "
            "the loss of the one prediction made at each query"
        ),
    ] = "sequence"
    top_k: Annotated[
        int, Field(ge=1, le=64, description="keys that each head picks: those of largest absolute advantage")
    ] = 5
    min_heads: Annotated[
        int,
        Field(
            ge=1,
            le=1024,
            description="heads that must pick a key with the same sign of advantage, so that it qualifies",
        ),
    ] = 4
    min_attention_rank: Annotated[
        int,
        Field(
            ge=1,
            le=131_072,
            description="how buried: qualifying keys are stored only where the attention rank is at least this in "
            "every agreeing head; 1 stores all",
        ),
    ] = 1
    keep: Annotated[
        int, Field(ge=1, le=1000, description="qualifying keys stored per layer and query, the largest scores first")
    ] = 16
    picks: Annotated[
        Literal["all", "coalition", "none"],
        Field(
            description="which of the heads' own picks are stored: all, those of queries with a stored qualifying key, "
            "or none"
        ),
    ] = "all"

    def require_fit(self, layers: int, heads: int) -> None:
        if self.min_heads > heads:
            raise KeyholeError(
                ErrorCode.INVALID_REQUEST,
                f"min_heads is {self.min_heads}, and a layer of this model has {heads} heads.",
                "Lower min_heads: no key could ever qualify.",
            )


KEY_TABLE = ResultTable(
    name="buried_key",
    comment="Keys that qualified: picked by min_heads heads of a layer or more, with one sign of advantage.",
    columns=(
        JOB,
        LAYER,
        SEQUENCE,
        QUERY,
        Column("key", "int4", "position of the key in the sequence, 0-based"),
        Column("score", "float4", "sum over the agreeing heads of |advantage| / root mean square of the head's row"),
        Column(
            "attention_rank_smallest", "int4", "rank of the key in the agreeing head that attends to it most; 1: top"
        ),
        Column("attention_rank_median", "float4", "median of the key's attention ranks over the agreeing heads"),
        Column("attention_rank_largest", "int4", "rank of the key in the agreeing head that attends to it least"),
        Column("largest_weight", "float4", "largest attention weight of the key among the agreeing heads"),
        Column(
            "direction", "int2", "1: the agreeing heads' advantages are positive (more attention), -1: negative (less)"
        ),
        Column("heads", "int2", "number of agreeing heads"),
        Column("place", "int2", "rank by score among all qualifying keys of the layer and query; 1: best"),
    ),
)

PICK_TABLE = ResultTable(
    name="buried_pick",
    comment="The heads' own picks: the top_k keys of largest absolute advantage per head and query.",
    columns=(
        JOB,
        LAYER,
        HEAD,
        SEQUENCE,
        QUERY,
        Column("key", "int4", "position of the key in the sequence, 0-based"),
        Column("advantage", "float4", "signed advantage over its root mean square in the head's row; positive: more"),
        Column("weight", "float4", "attention weight of the key in this head"),
        Column("attention_rank", "int4", "1 + keys of the row that this head attends to more"),
        Column("place", "int2", "rank by absolute advantage among the head's keys; 1: largest"),
        Column("agrees", "bool", "whether this head is one of those by which a key qualified"),
    ),
)

QUERY_TABLE = ResultTable(
    name="buried_query",
    comment="What became of each query of a layer, also where no key qualified.",
    columns=(
        JOB,
        LAYER,
        SEQUENCE,
        QUERY,
        Column("best_score", "float4", "largest score of a qualifying key; 0 where none qualified"),
        Column("qualifying", "int2", "number of qualifying keys; 0: the heads abstain"),
        Column("most_heads", "int2", "most heads that picked one key with one sign, whether that was enough or not"),
    ),
)

METRICS = (
    SummaryMetric(
        "log10_attention_rank",
        KEY_TABLE.name,
        "log(attention_rank_median::float8)",
        0.0,
        0.1,
        52,
        "log10 of a qualifying key's median attention rank in the agreeing heads",
    ),
    SummaryMetric(
        "log10_smallest_attention_rank",
        KEY_TABLE.name,
        "log(attention_rank_smallest::float8)",
        0.0,
        0.1,
        52,
        "log10 of a qualifying key's smallest attention rank in the agreeing heads",
    ),
    SummaryMetric(
        "coalition_score",
        KEY_TABLE.name,
        "score",
        0.0,
        1.0,
        400,
        "score of a qualifying key: sum over the agreeing heads of |advantage| / root mean square of the row",
    ),
    SummaryMetric(
        "agreeing_heads", KEY_TABLE.name, "heads", 0.0, 1.0, 129, "number of heads that agree on a qualifying key"
    ),
    SummaryMetric(
        "favours_less",
        KEY_TABLE.name,
        "CASE WHEN direction < 0 THEN 1 ELSE 0 END",
        0.0,
        1.0,
        2,
        "1 where the agreeing heads favour less attention to a qualifying key, else 0; its mean is the share of keys",
    ),
    SummaryMetric(
        "qualifying_keys",
        QUERY_TABLE.name,
        "qualifying",
        0.0,
        1.0,
        129,
        "number of keys that qualify for a query in a layer",
    ),
    SummaryMetric(
        "abstains",
        QUERY_TABLE.name,
        "CASE WHEN qualifying = 0 THEN 1 ELSE 0 END",
        0.0,
        1.0,
        2,
        "1 where no key qualifies for a query in a layer, else 0; its mean is the share of queries",
    ),
    SummaryMetric(
        "pick_log10_attention_rank",
        PICK_TABLE.name,
        "log(attention_rank::float8)",
        0.0,
        0.1,
        52,
        "log10 of the attention rank of a key that a head picks",
    ),
    SummaryMetric(
        "pick_agrees",
        PICK_TABLE.name,
        "CASE WHEN agrees THEN 1 ELSE 0 END",
        0.0,
        1.0,
        2,
        "1 where a head's pick is part of a coalition, else 0; its mean is the share of picks",
    ),
)
