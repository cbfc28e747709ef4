"""``pattern_stability``: distances between the attention patterns of checkpoints (Figure 4 of "Stuck in a Loop")."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.parameters import Parameters
from services.contracts.printable import NAME_PATTERN
from services.contracts.probes.common import ProbeParameters
from services.contracts.sources import step_in
from services.contracts.tables import HEAD, JOB, LAYER, SEQUENCE, Column, ResultTable, SummaryMetric

MOST_CHECKPOINTS = 64  # the job's own model among them: 2,016 pairs
LN_2 = 0.6931471805599453  # the largest Jensen–Shannon divergence, in nats

RunName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=60,
        pattern=NAME_PATTERN,
        description="training run that the checkpoint is of; checkpoints of equal names are of one run",
    ),
]
Step = Annotated[int, Field(ge=0, le=10**12, description="training step at which the checkpoint was taken")]


def run_and_step(source: str) -> tuple[str, int]:
    """Run and step that a model source tells: a number of its revision, or of its folder, is the step.

    ``hf:ORG/NAME@step100`` is step 100 of run NAME, ``path:runs/a/step-100`` step 100 of run a; without number step 0.
    ``run:5@100`` is step 100 of ``run 5``. What ``checkpoint:7`` is of does not show: it is a run of its own.
    """
    form, _, rest = source.strip().partition(":")
    if form == "run":
        number, _, last = rest.partition("@")
        run = f"run {number}"
    elif form == "checkpoint":
        run, last = f"checkpoint {rest}", ""
    elif form == "hf":
        name, _, last = rest.partition("@")
        run = name.rpartition("/")[2]
    else:
        *folders, last = [part for part in rest.split("/") if part] or [rest]
        run = folders[-1] if folders else last
    return run[-60:] or "run", step_in(last) or 0


class Checkpoint(Parameters):
    """One more checkpoint to compare."""

    model: Annotated[str, Field(min_length=1, max_length=4096, description="model source of the checkpoint")]
    run: RunName = "run"
    step: Step = 0


class PatternStabilityParameters(ProbeParameters):
    run: RunName = "run"
    step: Step = 0
    checkpoints: Annotated[
        list[Checkpoint],
        Field(
            max_length=MOST_CHECKPOINTS - 1,
            description="the checkpoints that are compared with the job's model and with each other, at least one; "
            "the job's own model has number 0, these are numbered from 1",
        ),
    ] = Field(default=[])

    @model_validator(mode="after")
    def _told_apart(self) -> Self:
        seen: dict[tuple[str, int], int] = {}
        for number, (run, step) in enumerate(self.runs_and_steps()):
            if (run, step) in seen:
                raise ValueError(
                    f"checkpoints {seen[run, step]} and {number} are both step {step} of run {run!r} (number 0 is the "
                    "job's own model, with the parameters run and step); give each its own run or step"
                )
            seen[run, step] = number
        return self

    def runs_and_steps(self) -> Iterator[tuple[str, int]]:
        """Run and step of every checkpoint by number, the job's own model first."""
        yield self.run, self.step
        yield from ((each.run, each.step) for each in self.checkpoints)

    @classmethod
    def over_series(cls, sources: Sequence[str]) -> dict[str, Any]:
        """All models of a series compared with each other, with run and step as their sources tell."""
        first, *others = (run_and_step(source) for source in sources)
        checkpoints = [
            {"model": source, "run": run, "step": step} for source, (run, step) in zip(sources[1:], others, strict=True)
        ]
        return {"run": first[0], "step": first[1], "checkpoints": checkpoints}

    def other_models(self) -> list[str]:
        """Sources of all checkpoints but the job's model; raises KeyholeError (invalid_request) if there are none.

        The empty list is no invalid value, since a kind must have defaults: it is refused when a job is made of it.
        """
        if not self.checkpoints:
            raise KeyholeError(
                ErrorCode.INVALID_REQUEST,
                "parameters.checkpoints is empty: pattern_stability compares the job's model with other checkpoints.",
                'Name at least one, such as --set \'checkpoints=[{"model": "path:run-a/step-1000", "run": "a", '
                "\"step\": 1000}]', and run and step of the job's own model.",
            )
        return [each.model for each in self.checkpoints]

    def shard_sequences(self) -> int:
        """One shard: heads are assigned by their distance over all tokens of the job."""
        return self.sequences


def _measures(prefix: str, whose: str) -> tuple[Column, ...]:
    return (
        Column(f"{prefix}js_nats", "float4", f"Jensen–Shannon divergence of {whose}, in nats, 0 to ln 2"),
        Column(f"{prefix}total_variation", "float4", f"total variation distance of {whose}, 0 to 1"),
        Column(f"{prefix}cosine", "float4", f"cosine distance of {whose}, 0 to 1"),
    )


TABLE = ResultTable(
    name="pattern_distance",
    comment="Distances between the attention patterns of two checkpoints on the same tokens, by head and sequence: "
    "means over the measured queries, with heads paired by index and by optimal assignment.",
    columns=(
        JOB,
        LAYER,
        HEAD,
        SEQUENCE,
        Column("first", "int2", "number of the checkpoint whose head this is; see pattern_checkpoint"),
        Column("second", "int2", "number of the other checkpoint, larger than first"),
        *_measures("", "the patterns of this head in both checkpoints"),
        Column("paired_head", "int2", "head of the second checkpoint that the optimal assignment gives this head"),
        *_measures("paired_", "the patterns of this head and of paired_head"),
    ),
)

METRICS = (
    SummaryMetric(
        "js_nats",
        TABLE.name,
        "js_nats",
        0.0,
        0.007,
        100,
        "Jensen–Shannon divergence of a head's patterns in two checkpoints, in nats; over all pairs of checkpoints",
    ),
    SummaryMetric(
        "paired_js_nats",
        TABLE.name,
        "paired_js_nats",
        0.0,
        0.007,
        100,
        "Jensen–Shannon divergence of heads that the assignment pairs, in nats; over all pairs of checkpoints",
    ),
    SummaryMetric(
        "total_variation",
        TABLE.name,
        "total_variation",
        0.0,
        0.01,
        100,
        "total variation distance of a head's patterns in two checkpoints; over all pairs of checkpoints",
    ),
    SummaryMetric(
        "cosine",
        TABLE.name,
        "cosine",
        0.0,
        0.01,
        100,
        "cosine distance of a head's patterns in two checkpoints; over all pairs of checkpoints",
    ),
    SummaryMetric(
        "assigned_elsewhere",
        TABLE.name,
        "CASE WHEN paired_head <> head THEN 1 ELSE 0 END",
        0.0,
        1.0,
        2,
        "1 where the assignment pairs a head with one of another index, else 0; its mean is the share of heads",
    ),
)
