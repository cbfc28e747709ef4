"""Numbers of groups of runs against a reference group: differences, and whether they exceed the noise of seeds."""

from collections.abc import Mapping, Sequence

from dashboard.run_names import Group
from dashboard.sweep_words import turned
from db.sweep_results import Difference, Noise, Outcome, summarized
from services.contracts.training.variants import CONTROL


def reference_of(groups: Sequence[Group]) -> Group:
    """The control, or the first group where there is none."""
    return next((group for group in groups if group.variant == CONTROL), groups[0])


def compared(groups: Sequence[Group], values: Mapping[int, float | None]) -> tuple[Noise | None, dict[str, Difference]]:
    """Noise between seeds of any number of each run, and by label each group's difference from the reference.

    Student's t with the standard deviation pooled over groups, as sweeps compare their variants. Groups of which no
    run has the number are left out.
    """
    result = summarized(
        Outcome(group.label, {}, run.seed or 0, values.get(run.run_id)) for group in groups for run in group.runs
    )
    reference = reference_of(groups).label
    found = {}
    for each in result.differences:
        if reference in (each.first, each.second):
            told = turned(each, reference)
            found[told.second] = told
    return result.noise, found
