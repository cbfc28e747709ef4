"""Words of what a sweep found."""

import pytest

from dashboard.sweep_words import lead_words
from db.sweep_results import Outcome, summarized


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ({0.1: (3.0, 3.1), 0.2: (3.06, 3.16)}, "0.0600, within noise"),
        ({0.1: (3.0, 3.01), 0.2: (3.5, 3.51)}, "0.5000"),
        ({0.1: (3.0, 3.01)}, ""),
    ],
)
def test_a_lead_is_told_with_whether_noise_explains_it(losses: dict[float, tuple[float, ...]], words: str) -> None:
    outcomes = [
        Outcome("control", {"rate": rate}, seed, loss)
        for rate, of_seeds in losses.items()
        for seed, loss in enumerate(of_seeds)
    ]
    leads = {lead.variant: lead for lead in summarized(outcomes).leads}
    assert lead_words(leads.get("control")) == words
