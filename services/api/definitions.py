"""What a model's attention definition rules out: jobs whose numbers would not be what they say."""

from collections.abc import Sequence

from services.contracts.attention_definition import AttentionDefinition
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.kinds import Kind
from services.contracts.parameters import JobParameters
from services.contracts.training.training import TrainingParameters
from services.contracts.training.variants import ROUTINGS
from services.sources import ResolvedModel


def refuse_other_routing(kind: Kind, models: Sequence[ResolvedModel], parameters: JobParameters) -> None:
    """Raise KeyholeError (model_unsupported) where a kind needs softmax rows of each head and a model has others.

    ``models`` are the job's first and those that its parameters name. Also model_refused, for what is no definition.
    """
    routings = [AttentionDefinition.of_config(model.config).routing for model in models]
    concerned = {"every model": len(models), "first model": 1, "none": 0}[kind.softmax_rows_of]
    for model, routing in list(zip(models, routings, strict=True))[:concerned]:
        if routing != "softmax":
            raise KeyholeError(
                ErrorCode.MODEL_UNSUPPORTED,
                f"The attention of {model.source} is {routing}; the numbers of {kind.name} are those of a softmax over "
                "each head's own scores.",
                "On such a model shared_routing can be measured, and a calibration may take it for its teacher.",
            )
    if isinstance(parameters, TrainingParameters):
        _refuse_natq(models[0], routings[0], parameters)


def _refuse_natq(model: ResolvedModel, routing: str, parameters: TrainingParameters) -> None:
    names = {variant.name for variant in parameters.variants}
    if "natq" in names and routing != "softmax" and not names & ROUTINGS.keys():
        raise KeyholeError(
            ErrorCode.MODEL_UNSUPPORTED,
            f"natq uses the Fisher matrix of a head's softmax row; the attention of {model.source} is {routing}.",
            "Start from a model with softmax attention, or leave out natq.",
        )
