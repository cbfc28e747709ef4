"""``attention_profile``: where the attention of queries goes, and types of heads (Table 5 of "Stuck in a Loop")."""

from typing import Annotated

from pydantic import Field

from services.contracts.probes.common import ProbeParameters
from services.contracts.tables import HEAD, JOB, LAYER, SEQUENCE, STATISTIC_KEY, Column, ResultTable, SummaryMetric

LOCAL_KEYS = 8  # keys i−7 … i


class AttentionProfileParameters(ProbeParameters):
    repeated_sequences: Annotated[
        int,
        Field(
            ge=1,
            le=1024,
            description="sequences of random tokens repeated once, for the scores of induction, duplicate-token and "
            "previous-token heads; at most one for each sequence of the job",
        ),
    ] = 8
    repeated_length: Annotated[
        int,
        Field(
            ge=2,
            le=4096,
            description="random tokens that are repeated; fewer where twice as many and one do not fit `length`, or "
            "the vocabulary has fewer",
        ),
    ] = 50
    local_threshold: Annotated[
        float,
        Field(ge=0, le=1, description="a head whose mean weight on the eight nearest keys is above it counts as local"),
    ] = 0.7
    entropy_threshold_nats: Annotated[
        float, Field(ge=0, description="a head whose mean entropy is above it counts as spread out")
    ] = 4.5


TABLE = ResultTable(
    name="attention_profile",
    comment="Where each query's attention goes: entropy, largest weight, and weight on itself, near and first keys.",
    columns=(
        *STATISTIC_KEY,
        Column(
            "entropy_nats",
            "float4",
            "entropy over the keys of the row, in nats; under a learned sink that of the weights divided by their sum",
        ),
        Column("top_weight", "float4", "largest weight of the row"),
        Column("top_key", "int4", "position of the key that has it; the first of several"),
        Column("self_weight", "float4", "weight on key i, the query's own position"),
        Column("previous_weight", "float4", "weight on key i − 1; NaN at query 0"),
        Column("local_mass", "float4", "weight on keys i − 7 to i, the eight nearest"),
        Column("sink_mass", "float4", "weight on key 0; 0 where a sliding window hides it"),
        Column(
            "no_key_mass", "float4", "weight that a learned sink takes and no key gets; 0 for models without such sinks"
        ),
    ),
)

REPEATED_TABLE = ResultTable(
    name="attention_profile_repeated",
    comment="Scores of head types on random tokens that are repeated once; sequences here are not those of the data.",
    columns=(
        JOB,
        LAYER,
        HEAD,
        SEQUENCE,
        Column(
            "induction_score",
            "float4",
            "mean weight, over the repeated tokens, on the token after the first occurrence",
        ),
        Column("duplicate_score", "float4", "mean weight, over the repeated tokens, on the first occurrence"),
        Column("previous_score", "float4", "mean weight on the previous token, over all positions but the first"),
    ),
)


def _share(name: str, comment: str, table: ResultTable = TABLE) -> SummaryMetric:
    return SummaryMetric(name, table.name, name, 0.0, 0.01, 100, comment)


METRICS = (
    SummaryMetric("entropy_nats", TABLE.name, "entropy_nats", 0.0, 0.1, 120, "entropy of a query's attention, in nats"),
    _share("top_weight", "largest attention weight of a query"),
    _share("self_weight", "attention weight on the query's own position"),
    _share("previous_weight", "attention weight on the previous token"),
    _share("local_mass", "attention weight on the eight nearest keys"),
    _share("sink_mass", "attention weight on key 0"),
    _share("no_key_mass", "attention weight that a learned sink takes and no key gets"),
    _share(
        "induction_score",
        "on repeated random tokens: mean weight on the token after the first occurrence",
        REPEATED_TABLE,
    ),
    _share("duplicate_score", "on repeated random tokens: mean weight on the first occurrence", REPEATED_TABLE),
    _share("previous_score", "on repeated random tokens: mean weight on the previous token", REPEATED_TABLE),
)
