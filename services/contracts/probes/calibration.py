"""``calibration``: attention gradients of the expected and of the observed token (equations 45–47)."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.parameters import Parameters
from services.contracts.probes.common import ProbeParameters
from services.contracts.tables import STATISTIC_KEY, Column, ResultTable, SummaryMetric

LARGE_R = 1.5  # where the article's Figure 8 ends


class Anchors(Parameters):
    """Two keys of one row between which attention is transferred."""

    layer: Annotated[int, Field(ge=0, le=32_767, description="layer, 0-based")]
    head: Annotated[int, Field(ge=0, le=32_767, description="query head, 0-based")]
    sequence: Annotated[int, Field(ge=0, description="sequence of the job's data set, 0-based")]
    query: Annotated[int, Field(ge=0, description="position of the query, one of those measured")]
    first_key: Annotated[int, Field(ge=0, description="key whose score gets +c")]
    second_key: Annotated[int, Field(ge=0, description="key whose score gets -c")]

    @model_validator(mode="after")
    def _two_keys_of_the_row(self) -> Self:
        if self.first_key == self.second_key:
            raise ValueError(f"first_key and second_key are both {self.first_key}; attention moves between two keys")
        if max(self.first_key, self.second_key) > self.query:
            raise ValueError(
                f"key {max(self.first_key, self.second_key)} lies behind query {self.query}, which sees keys 0 to "
                f"{self.query}"
            )
        return self


class CalibrationParameters(ProbeParameters):
    teacher: Annotated[
        str,
        Field(
            min_length=1,
            max_length=4096,
            description="source of the model that stands for the true next-token distribution; it must share the "
            "model's tokenizer. The model itself as teacher gives r = 0",
        ),
    ] = "builtin:smollm2-135m-instruct"
    sweeps_per_sequence: Annotated[
        int, Field(ge=0, le=64, description="attention-transfer sweeps chosen in each sequence")
    ] = 1
    sweep_range: Annotated[
        float, Field(gt=0, le=30, description="c runs from minus this to this; it is added to a score")
    ] = 3.0
    sweep_points: Annotated[int, Field(ge=3, le=201, description="values of c; odd, so that 0 is one of them")] = 13
    anchors: list[Anchors] = Field(
        default=[],
        max_length=1000,
        description="sweeps to make besides; each has layer, head, sequence, query, first_key and second_key",
    )

    def other_models(self) -> list[str]:
        return [self.teacher]

    def require_fit(self, layers: int, heads: int) -> None:
        for anchors in self.anchors:
            if anchors.layer >= layers or anchors.head >= heads:
                raise KeyholeError(
                    ErrorCode.INVALID_REQUEST,
                    f"anchors name layer {anchors.layer}, head {anchors.head}; the model has {layers} layers of "
                    f"{heads} heads.",
                    "Name layers and heads from 0.",
                )

    @model_validator(mode="after")
    def _sweeps_that_can_be_made(self) -> Self:
        if self.sweep_points % 2 == 0:
            raise ValueError(f"sweep_points is {self.sweep_points}; give an odd number, so that c = 0 is one of them")
        queries = self.queries.positions(self.length)
        for anchors in self.anchors:
            if anchors.sequence >= self.sequences:
                raise ValueError(
                    f"anchors name sequence {anchors.sequence}; the job has sequences 0 to {self.sequences - 1}"
                )
            if anchors.query not in queries:
                raise ValueError(
                    f"anchors name query {anchors.query}, which is not measured; queries run from {queries.start} "
                    f"below {queries.stop} in steps of {queries.step}"
                )
            if anchors.query >= self.length - 1:
                raise ValueError(f"anchors name query {anchors.query}, the last position, which predicts nothing")
        return self


TABLE = ResultTable(
    name="calibration",
    comment="Attention gradients of each query's own prediction for the expected and for the observed next token.",
    columns=(
        *STATISTIC_KEY,
        Column("r", "float4", "soft_norm over hard_norm (equation 47); NaN where hard_norm is 0"),
        Column(
            "hard_norm",
            "float4",
            "Euclidean norm of the observed token's gradient at the row's scores, nats per unit of score",
        ),
        Column(
            "soft_norm",
            "float4",
            "the same of the loss averaged over the teacher's next tokens, nats per unit of score",
        ),
    ),
)

SWEEP_TABLE = ResultTable(
    name="transfer_sweep",
    comment="Attention-transfer sweeps: losses while c is added to one score of a row and subtracted from another.",
    columns=(
        *STATISTIC_KEY,
        Column("first_key", "int4", "key whose score gets +c"),
        Column("second_key", "int4", "key whose score gets -c"),
        Column("c", "float4", "what is added to and subtracted from the pre-softmax scores"),
        Column("r", "float4", "r of the row, as in table calibration; the same at every c"),
        Column("chosen", "bool", "whether the probe chose the anchors; false if the job named them"),
        Column("first_weight", "float4", "attention weight of the first key at this c"),
        Column("second_weight", "float4", "attention weight of the second key at this c"),
        Column("hard_loss_nats", "float8", "loss of the observed next token at this c (equation 45)"),
        Column("soft_loss_nats", "float8", "loss averaged over the teacher's next tokens at this c (equation 46)"),
    ),
)

METRICS = (
    SummaryMetric(
        "r",
        TABLE.name,
        "r",
        0.0,
        0.02,
        76,
        "norm of the soft over that of the hard attention gradient (equation 47); from 1.5 on in the last bin",
    ),
    SummaryMetric(
        "r_above_1_5",
        TABLE.name,
        f"CASE WHEN r = 'NaN' THEN 'NaN'::float8 WHEN r > {LARGE_R} THEN 1 ELSE 0 END",
        0.0,
        1.0,
        2,
        "1 where r > 1.5, else 0; its mean is the share of queries",
    ),
)
