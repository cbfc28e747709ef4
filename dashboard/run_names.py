"""What to call runs where several are shown, in what they differ, and which of them are alike in all but their seed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.formats import NOTHING, shortened, told_apart
from dashboard.queries.runs import Run, RunLine

MOST_RUNS = 40  # shown together
_NAME_LETTERS = 40
_VALUE_LETTERS = 36
_SHORT = {  # what titles call a setting; others go by the last part of their name
    "optimizer.learning_rate": "lr",
    "optimizer.weight_decay": "wd",
    "optimizer.name": "",
    "Variant": "",
    "Model": "",
    "Data set": "",
}
# says how a run is computed or stored, not what it computes
_ALIKE = ("batch", "processes", "compile", "checkpoints", "validation")
_NOT_SETTINGS = ("Name", "seed")  # of which runs that are alike may differ


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed."""

    label: str
    runs: Sequence[Run]

    @property
    def numbers(self) -> list[int]:
        return [run.run_id for run in self.runs]

    @property
    def variant(self) -> str:
        return self.runs[0].variant or "imported"


def settings(run: Run) -> dict[str, str]:
    """All that a run was asked for, by dotted name."""
    found = {"Name": run.name, "Variant": run.variant or NOTHING, "Model": run.model}
    found["Data set"] = run.dataset or NOTHING
    parameters = dict(run.parameters or {})
    for variant in parameters.pop("variants", None) or []:
        options = {name: value for name, value in variant.items() if name != "name"}
        found |= _leaves(options, f"{variant.get('name')}.")
    return found | _leaves(parameters)


def _leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _leaves(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = _text(value)
    return found


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value)


def differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Settings that are not the same in all of these runs, each with its value by run; NOTHING where it has none.

    Options of a variant or optimizer that only some runs have count where those differ: that others have none is
    said by the variant or optimizer.
    """
    every = [settings(run) for run in runs]
    names = dict.fromkeys(name for each in every for name in each)
    return {
        name: [each.get(name, NOTHING) for each in every]
        for name in names
        if len({each[name] for each in every if name in each}) > 1
    }


def titles(runs: Sequence[Run]) -> dict[int, str]:
    """By number of the run: number, variant, seed, and what else not all of these runs have in common."""
    differing = differences(runs)
    named = [name for name in differing if not _aside(name) and name not in ("Variant", "Name", "seed")]
    return {
        run.run_id: " · ".join(
            [
                f"run {run.run_id}",
                run.variant or shortened(run.name, _NAME_LETTERS),
                *([f"seed {run.seed}"] if run.seed is not None else []),
                *(_words(name, differing[name][index]) for name in named if differing[name][index] != NOTHING),
            ]
        )
        for index, run in enumerate(runs)
    }


def groups(runs: Sequence[Run]) -> list[Group]:
    """Runs that are alike in all but name and seed, in the order of their first; labelled by what tells them apart."""
    found: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        key = tuple(sorted((n, v) for n, v in settings(run).items() if n not in _NOT_SETTINGS and not _aside(n)))
        found.setdefault(key, []).append(run)
    firsts = [members[0] for members in found.values()]
    differing = differences(firsts)
    named = [name for name in differing if not _aside(name) and name not in (*_NOT_SETTINGS, "Variant")]
    labels = [
        " · ".join(
            [
                first.variant or f"run {first.run_id}",
                *(_words(name, differing[name][index]) for name in named if differing[name][index] != NOTHING),
            ]
        )
        for index, first in enumerate(firsts)
    ]
    return [Group(label, members) for label, members in zip(labels, found.values(), strict=True)]


def picker_names(lines: Sequence[RunLine]) -> dict[int, str]:
    """By number of the run: number, name, variant, seed, model."""
    names = told_apart((_one_line(line.name) for line in lines), _NAME_LETTERS)
    return {
        line.run_id: " · ".join(
            [
                str(line.run_id),
                names[_one_line(line.name)],
                *([line.variant] if line.variant else []),
                *([f"seed {line.seed}"] if line.seed is not None else []),
                *([f"lr {line.learning_rate:g}"] if line.learning_rate is not None else []),
                shortened(line.model, _VALUE_LETTERS),
            ]
        )
        for line in lines
    }


def _one_line(name: str) -> str:
    return " ".join(name.split())


def _aside(name: str) -> bool:
    return name.partition(".")[0] in _ALIKE


def _words(name: str, value: str) -> str:
    short = _SHORT.get(name, name.rpartition(".")[2].replace("_", " "))
    return shortened(f"{short} {value}".strip(), _VALUE_LETTERS)
