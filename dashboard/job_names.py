"""What to call a finished job: all that it was asked for in the picker, and what differs where jobs are compared."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dashboard.formats import NOTHING, count, shortened, told_apart
from dashboard.queries.jobs import FinishedJob

_LETTERS = 40  # of a model or data set
_LABEL_LETTERS = 40
_PICKED = ("Credit", "Number type", "Sequences", "Length", "Queries")  # told even where all jobs agree


def picker_names(jobs: Sequence[FinishedJob]) -> dict[int, str]:
    """By job number: number, label, model, data set and parameters."""
    models = told_apart((job.model for job in jobs), _LETTERS)
    datasets = told_apart((job.dataset for job in jobs), _LETTERS)
    parameters, differing = _parameters(jobs), differences(jobs)
    return {
        job.job_id: " · ".join(
            [
                str(job.job_id),
                *([_label(job)] if job.label else []),
                models[job.model],
                datasets[job.dataset],
                *_given(words(job) for name, words in parameters.items() if name in _PICKED or name in differing),
            ]
        )
        for job in jobs
    }


def titles(jobs: Sequence[FinishedJob]) -> dict[int, str]:
    """By job number: number, label, and what not all of these jobs have in common."""
    differing = differences(jobs)
    found = {}
    for index, job in enumerate(jobs):
        parts = _given(values[index] for name, values in differing.items() if name != "Label")
        if not parts and not job.label:
            parts = [shortened(job.model, _LETTERS)]
        found[job.job_id] = " · ".join([f"Job {job.job_id}", *([_label(job)] if job.label else []), *parts])
    return found


def differences(jobs: Sequence[FinishedJob]) -> dict[str, list[str]]:
    """What is not the same in all of these jobs, each with its value by job; NOTHING where a job was given none."""
    models = told_apart((job.model for job in jobs), _LETTERS)
    datasets = told_apart((job.dataset for job in jobs), _LETTERS)
    facets: dict[str, tuple[Callable[[FinishedJob], Any], Callable[[FinishedJob], str]]] = {
        "Label": (lambda job: job.label, lambda job: _label(job) or NOTHING),
        "Model": (lambda job: job.model, lambda job: models[job.model]),
        "Data set": (lambda job: job.dataset, lambda job: datasets[job.dataset]),
    }
    facets |= {name: (words, words) for name, words in _parameters(jobs).items()}
    if len({job.model for job in jobs}) == 1:  # the same path may hold another model today
        facets["Model's contents"] = (lambda job: job.model_identity, lambda job: f"model …{job.model_identity[-7:]}")
    if len({job.dataset for job in jobs}) == 1:
        facets["Data's contents"] = (lambda job: job.dataset_identity, lambda job: f"data …{job.dataset_identity[-7:]}")
    if all(job.device for job in jobs):
        facets["Device"] = (lambda job: job.device, lambda job: f"on {job.device}")
    return {
        name: [words(job) for job in jobs]
        for name, (value, words) in facets.items()
        if len({value(job) for job in jobs}) > 1
    }


def _given(words: Iterable[str]) -> list[str]:
    return [word for word in words if word != NOTHING]


def _label(job: FinishedJob) -> str:
    return shortened(" ".join((job.label or "").split()), _LABEL_LETTERS)


def _sequences(job: FinishedJob) -> str:
    number = job.parameters["sequences"]
    return f"{count(number)} sequence{'' if number == 1 else 's'}"


def _queries(job: FinishedJob) -> str:
    asked = job.parameters["queries"]
    stop = "" if asked["stop"] is None else f" to {asked['stop']}"
    return f"queries {asked['start']}{stop} step {asked['step']}"


_WORDS: dict[str, tuple[str, Callable[[FinishedJob], str]]] = {
    "credit": ("Credit", lambda job: f"credit {job.parameters['credit']}"),
    "dtype": ("Number type", lambda job: job.parameters["dtype"]),
    "sequences": ("Sequences", _sequences),
    "length": ("Length", lambda job: f"length {count(job.parameters['length'])}"),
    "queries": ("Queries", _queries),
}
_ALIKE = "batch"  # changes no result
_ALL = {"layers": "all layers", "sites": "every head"}  # of parameters that limit a job, where none is given


def _parameters(jobs: Sequence[FinishedJob]) -> dict[str, Callable[[FinishedJob], str]]:
    """How to put each parameter of these jobs, which are of one kind, into words."""
    names = dict.fromkeys(name for job in jobs for name in job.parameters if name != _ALIKE)
    told = [name for name in _WORDS if name in names]
    return dict(_WORDS[name] for name in told) | {
        name.replace("_", " ").capitalize(): _teller(name) for name in names if name not in _WORDS
    }


def _teller(name: str) -> Callable[[FinishedJob], str]:
    def words(job: FinishedJob) -> str:
        value = job.parameters.get(name)
        if value is None or value == []:
            return _ALL.get(name, NOTHING)
        return shortened(f"{name.replace('_', ' ')} {brief(value)}", _LETTERS)

    return words


def brief(value: Any) -> str:
    """A parameter's value on one line; of several parts those that are given."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " ".join(f"{name} {brief(part)}" for name, part in value.items() if part is not None)
    return ", ".join(map(brief, value)) if isinstance(value, list) else str(value)
