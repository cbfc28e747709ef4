"""What a sweep's results say, in words: settings, losses with their spread, differences against seed noise."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dashboard.formats import NOTHING
from dashboard.queries.sweeps import Member
from db.sweep_results import Difference, Lead, Noise, Outcome, SettingResult, SweepResult, summarized
from services.contracts.training.sweep import settings_in_words


def result_of(members: Iterable[Member]) -> SweepResult:
    """The result so far."""
    return summarized(
        Outcome(each.variant, each.setting, each.seed, each.final_validation_loss_nats) for each in members
    )


def setting_words(setting: Mapping[str, Any]) -> str:
    """``learning_rate 0.001, weight_decay 0.1``."""
    return ", ".join(settings_in_words(setting)) or "its only setting"


def with_spread(values: Sequence[float], digits: int = 4) -> str:
    """Mean ± sample standard deviation, which one value does not have."""
    if not values:
        return NOTHING
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return f"{mean:.{digits}f}"
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return f"{mean:.{digits}f} ± {spread:.{digits}f}"


def noise_words(noise: Noise | None) -> str:
    if noise is None:
        return "No setting has two finished seeds, so that nothing tells how much runs differ by chance."
    return (
        f"Seeds of one setting differ by {noise.sd_nats:.4f} nats (one standard deviation, pooled over all settings "
        f"with two seeds or more; {noise.degrees_of_freedom} degrees of freedom)."
    )


def difference_words(found: Difference) -> str:
    """One sentence on two variants; safe for markdown but for the names of the variants."""
    side = "higher" if found.difference_nats > 0 else "lower"
    ends = f"ends {abs(found.difference_nats):.4f} nats {side} than {found.first}"
    if abs(found.difference_nats) < 5e-5:  # it would read as 0.0000
        ends = f"ends at the same loss as {found.first} to 0.0001 nats"
    noise = "beyond seed noise" if found.verdict == "differs" else "within seed noise"
    return f"**{found.second} {ends}, {noise}**: {found.reason}."


def turned(found: Difference, reference: str) -> Difference:
    """The same difference, seen from that variant."""
    if found.second != reference:
        return found
    return Difference(
        found.second,
        found.first,
        -found.difference_nats,
        found.standard_error_nats,
        found.least_nats,
        found.verdict,
        found.reason,
    )


def lead_words(lead: Lead | None) -> str:
    """How far the best setting is ahead of the next one; empty where there is none."""
    if lead is None:
        return ""
    return f"{lead.lead_nats:z.4f}" + ("" if lead.verdict == "differs" else ", within noise")


def best_words(found: SettingResult) -> str:
    return f"{setting_words(found.setting)}: {with_spread(found.losses_nats)} nats"
