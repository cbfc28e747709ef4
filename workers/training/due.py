"""What is due after which step of a run. Step 0 is the model as it starts."""

from services.contracts.training.training import TrainingParameters


def is_logged(parameters: TrainingParameters, step: int) -> bool:
    return step > 0 and (step in (1, parameters.steps) or step % parameters.validation.log_every == 0)


def is_validated(parameters: TrainingParameters, step: int) -> bool:
    return step in (0, parameters.steps) or step % parameters.validation.every == 0


def checkpoint_reasons(parameters: TrainingParameters, step: int) -> list[str]:
    """Why a checkpoint is due whatever the losses are; ``best`` is known only after the validation."""
    asked = parameters.checkpoints
    reasons = {
        "first": step == 0,
        "log": asked.log_spaced and step > 0 and step & (step - 1) == 0,
        "interval": asked.every is not None and step > 0 and step % asked.every == 0,
        "asked": step in asked.steps,
        "last": step == parameters.steps,
    }
    return [reason for reason, due in reasons.items() if due]
