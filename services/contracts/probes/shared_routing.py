"""``shared_routing``: what a model loses when the heads of a layer share one pattern (equations 34–38)."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.common import ProbeParameters, QueryRange
from services.contracts.tables import JOB, LAYER, QUERY, SEQUENCE, Column, ResultTable, SummaryMetric

Routing = Literal["shared_softmax", "sigmoid", "shared_sigmoid"]
Bias = (
    Literal["row_length", "sequence_length", "fitted"] | Annotated[float, Field(ge=-1000, le=1000, allow_inf_nan=False)]
)

ALL_AT_ONCE = -1  # stands for the layer where several are changed at once


class SharedRoutingParameters(ProbeParameters):
    queries: QueryRange = Field(
        default=QueryRange(start=0, step=1),
        description="positions whose next token is scored; every one costs the same pass. The last predicts nothing",
    )
    routing: Annotated[
        Routing,
        Field(
            description="'shared_softmax': scores averaged over the layer's heads (equation 34); 'sigmoid': sigmoid "
            "weights per head; 'shared_sigmoid': sigmoid weights of averaged scores (equation 38)"
        ),
    ] = "shared_softmax"
    layers: Annotated[
        list[Annotated[int, Field(ge=0, le=9999)]] | None,
        Field(min_length=1, description="layers to change, ascending; none means every layer"),
    ] = None
    together: Annotated[
        bool,
        Field(
            description="false: one layer is changed at a time; true: all at once, stored as layer -1",
        ),
    ] = False
    bias: Annotated[
        Bias,
        Field(
            description="b of sigmoid routing: 'row_length', -log of the number of keys in the query's row; "
            "'sequence_length', -log of the length; 'fitted', the number of least loss, by layer; or a number"
        ),
    ] = "row_length"
    fit_sequences: Annotated[
        int, Field(ge=1, le=64, description="the first sequences, on which a fitted bias is chosen")
    ] = 2

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.layers is not None and self.layers != sorted(set(self.layers)):
            raise ValueError(f"layers {self.layers} must ascend without repeats")
        if self.routing == "shared_softmax" and self.bias != "row_length":
            raise ValueError(
                f"bias {self.bias!r} belongs to sigmoid routing; leave it out, or set routing to 'sigmoid' or "
                "'shared_sigmoid'"
            )
        if not self.predicting_queries(self.length):
            raise ValueError(
                f"the only query is {self.length - 1}, the last position, which predicts nothing; lower queries.start"
            )
        return self

    def predicting_queries(self, length: int) -> range:
        """The queries whose next token is in the sequence."""
        asked = self.queries.positions(length)
        return asked[:-1] if asked and asked[-1] == length - 1 else asked

    def require_fit(self, layers: int, heads: int) -> None:
        if self.layers is not None and self.layers[-1] >= layers:
            raise KeyholeError(
                ErrorCode.INVALID_REQUEST,
                f"The parameter layers names layer {self.layers[-1]}; the model has {layers}, numbered from 0.",
                f"Name layers from 0 to {layers - 1}, or leave the parameter out for all of them.",
            )

    def shard_sequences(self) -> int:
        """A fitted bias must be the same for the whole job, so that one shard holds all of its sequences."""
        if self.bias == "fitted":
            return -(-self.sequences // self.batch) * self.batch
        return super().shard_sequences()


TABLE = ResultTable(
    name="shared_routing",
    comment="Loss of each token when the routing of one layer is changed (equations 34-38); layer -1: of all at once.",
    columns=(
        JOB,
        LAYER,
        SEQUENCE,
        QUERY,
        Column("loss_nats", "float4", "loss of the prediction made at the query, by the changed model, in nats"),
        Column("extra_loss_nats", "float4", "by how much that is above the unmodified model's loss, in nats"),
    ),
)

UNMODIFIED_TABLE = ResultTable(
    name="shared_routing_unmodified",
    comment="Loss of each token by the unmodified model, which shared_routing compares with.",
    columns=(
        JOB,
        SEQUENCE,
        QUERY,
        Column("loss_nats", "float4", "loss of the prediction made at the query, in nats"),
    ),
)

METRICS = (
    SummaryMetric(
        "extra_loss_nats",
        TABLE.name,
        "extra_loss_nats",
        -5.0,
        0.1,
        200,
        "extra loss of a token by the changed routing, in nats",
    ),
    SummaryMetric(
        "extra_loss_decades",
        TABLE.name,
        "CASE WHEN extra_loss_nats = 'NaN' THEN 'NaN'::float8 ELSE asinh(extra_loss_nats::float8 / 0.001) / ln(10) END",
        -5.0,
        0.1,
        100,
        "asinh(extra loss of a token / 0.001 nat) / ln 10: its sign times its decades above half a thousandth of a nat",
    ),
    SummaryMetric(
        "loss_rises_by_a_nat",
        TABLE.name,
        "CASE WHEN extra_loss_nats = 'NaN' THEN 'NaN'::float8 WHEN extra_loss_nats > 1 THEN 1 ELSE 0 END",
        0.0,
        1.0,
        2,
        "1 where the extra loss of a token is above 1 nat, else 0; its mean is the share of tokens",
    ),
    SummaryMetric(
        "unmodified_loss_nats",
        UNMODIFIED_TABLE.name,
        "loss_nats",
        0.0,
        0.1,
        200,
        "loss of a token by the unmodified model, in nats",
    ),
)
