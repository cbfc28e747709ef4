"""The table of job kinds. Adding a kind is one row here; a test over all kinds finds what is missing elsewhere."""

from dataclasses import dataclass
from typing import Literal

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.parameters import JobParameters
from services.contracts.probes import (
    attention_profile,
    buried_keys,
    calibration,
    entropy_bound,
    gradient_scale,
    jacobian_spectrum,
    pattern_stability,
    ratchet,
    shared_routing,
)
from services.contracts.tables import ResultTable, SummaryMetric
from services.contracts.training import training

Queue = Literal["probe", "training"]
Watches = Literal["forward", "backward"]
QUEUES: tuple[Queue, ...] = ("probe", "training")
RUN_JOB_TASK = "keyhole.run_job"  # the Celery task; its message carries a job id and nothing else


@dataclass(frozen=True)
class Kind:
    name: str
    queue: Queue
    version: int  # version of the computation: raised when results would differ, so that old ones are not reused
    summary: str
    parameters: type[JobParameters]
    tables: tuple[ResultTable, ...]
    metrics: tuple[SummaryMetric, ...]
    # the passes that its jobs watch and share with others on the same model and tokens; none if they run their own
    watches: Watches | None = None
    # models whose weights have to be the softmax rows of each head's own scores, for the numbers to be what they say
    softmax_rows_of: Literal["every model", "first model", "none"] = "every model"


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            name="gradient_scale",
            queue="probe",
            version=1,
            summary="Spread of attention (D_a) and of advantage (D_c) within each query, equation 14.",
            parameters=gradient_scale.GradientScaleParameters,
            tables=(gradient_scale.TABLE,),
            metrics=gradient_scale.METRICS,
            watches="backward",
        ),
        Kind(
            name="attention_profile",
            queue="probe",
            version=1,
            summary="Entropy, local, sink and top weights of each query, and types of heads, Table 5.",
            parameters=attention_profile.AttentionProfileParameters,
            tables=(attention_profile.TABLE, attention_profile.REPEATED_TABLE),
            metrics=attention_profile.METRICS,
            watches="forward",
        ),
        Kind(
            name="buried_keys",
            queue="probe",
            version=1,
            summary="Keys on which several heads of a layer agree by advantage, and how little they attend to them.",
            parameters=buried_keys.BuriedKeysParameters,
            tables=(buried_keys.KEY_TABLE, buried_keys.PICK_TABLE, buried_keys.QUERY_TABLE),
            metrics=buried_keys.METRICS,
            watches="backward",
        ),
        Kind(
            name="jacobian_spectrum",
            queue="probe",
            version=1,
            summary="Effective ranks and modes of each query's Jacobian dy/dq, equations 23 to 25.",
            parameters=jacobian_spectrum.JacobianSpectrumParameters,
            tables=(jacobian_spectrum.TABLE, jacobian_spectrum.MODE_TABLE),
            metrics=jacobian_spectrum.METRICS,
            watches="forward",
        ),
        Kind(
            name="shared_routing",
            queue="probe",
            version=1,
            summary="Loss of each token when the heads of a layer share one pattern, Figure 5, or weigh by sigmoid.",
            parameters=shared_routing.SharedRoutingParameters,
            tables=(shared_routing.TABLE, shared_routing.UNMODIFIED_TABLE),
            metrics=shared_routing.METRICS,
            softmax_rows_of="none",  # losses, with the model's own attention in the layers that are left alone
        ),
        Kind(
            name="ratchet",
            queue="probe",
            version=1,
            summary="Whether a gradient step pulls each query's top key further ahead, equations 26-33.",
            parameters=ratchet.RatchetParameters,
            tables=(ratchet.TABLE, ratchet.BAND_TABLE),
            metrics=ratchet.METRICS,
            watches="backward",
        ),
        Kind(
            name="pattern_stability",
            queue="probe",
            version=1,
            summary="Distances between the attention patterns of checkpoints, within runs and across them, Figure 4.",
            parameters=pattern_stability.PatternStabilityParameters,
            tables=(pattern_stability.TABLE,),
            metrics=pattern_stability.METRICS,
        ),
        Kind(
            name="entropy_bound",
            queue="probe",
            version=1,
            summary="Row entropy against the least that scores allow, and whether sparse patterns are of low rank too.",
            parameters=entropy_bound.EntropyBoundParameters,
            tables=(entropy_bound.TABLE,),
            metrics=entropy_bound.METRICS,
            watches="forward",
        ),
        Kind(
            name="calibration",
            queue="probe",
            version=1,
            summary="Attention gradient of the expected against the observed token, and transfer sweeps, Appendix A.",
            parameters=calibration.CalibrationParameters,
            tables=(calibration.TABLE, calibration.SWEEP_TABLE),
            metrics=calibration.METRICS,
            softmax_rows_of="first model",  # of a teacher only the next-token distribution is used
        ),
        Kind(
            name="training",
            queue="training",
            version=1,
            summary="A training run: variants of attention, NATQ among them, with metrics and stored checkpoints.",
            parameters=training.TrainingParameters,
            tables=(),  # its numbers are by step, of its run: training_metric, training_matrix, checkpoint
            metrics=(),
            softmax_rows_of="none",
        ),
    )
}


def kind_named(name: str) -> Kind:
    """The kind of that name; raises KeyholeError (unknown_kind) that lists the valid ones."""
    if name not in KINDS:
        raise KeyholeError(
            ErrorCode.UNKNOWN_KIND, f"There is no job kind {name!r}.", f"Valid kinds: {', '.join(KINDS)}."
        )
    return KINDS[name]


def result_tables() -> dict[str, ResultTable]:
    """All result tables by name."""
    return {table.name: table for kind in KINDS.values() for table in kind.tables}
