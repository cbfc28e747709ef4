"""What the attention-profile page calls its metrics, and how it draws them."""

from dataclasses import dataclass

from dashboard.charts.head_map import Statistic
from dashboard.charts.look import ADVANTAGE_SCALE, ATTENTION_SCALE, DIFFERENCE_SCALE
from dashboard.formats import NOTHING

KIND = "attention_profile"


def decimals(value: float | None, digits: int = 3) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def signed(value: float | None) -> str:
    return NOTHING if value is None else f"{value:+.3f}"


@dataclass(frozen=True)
class Metric:
    """A column of analysis.attention_profile_heads, which is the mean of the summary metric of that name."""

    name: str
    label: str
    meaning: str
    rows: str = "queries"  # what its distribution is over

    def statistic(self) -> Statistic:
        scale = ATTENTION_SCALE if self.rows == "queries" else ADVANTAGE_SCALE
        return Statistic(self.name, self.label, scale, decimals, logarithmic=False, tick_format=".2f")

    def difference(self) -> Statistic:
        label = f"difference in {self.label}"
        return Statistic(self.name, label, DIFFERENCE_SCALE, signed, centre=0.0, logarithmic=False, tick_format="+.2f")


_RANDOM = "random sequences"
METRICS = {
    metric.name: metric
    for metric in (
        Metric("entropy_nats", "entropy (nats)", "entropy of the attention of a query"),
        Metric("top_weight", "top weight", "largest weight of a query"),
        Metric("local_mass", "local mass", "weight on the eight nearest keys, the query's own position included"),
        Metric("self_weight", "self", "weight on the query's own position"),
        Metric("previous_weight", "previous token", "weight on the previous token of the text"),
        Metric("sink_mass", "sink (key 0)", "weight on key 0"),
        Metric("no_key_mass", "learned sink", "weight that a learned sink takes and no key gets"),
        Metric(
            "induction_score",
            "induction",
            "on random tokens repeated once: weight on the token after the first occurrence",
            _RANDOM,
        ),
        Metric("duplicate_score", "duplicate token", "the same: weight on the first occurrence itself", _RANDOM),
        Metric("previous_score", "previous, random tokens", "the same: weight on the previous token", _RANDOM),
    )
}
