"""What the entropy-bound page calls its metrics, how it draws them, and the kinds of pattern it tells apart."""

import math
from dataclasses import dataclass

import streamlit as st

from dashboard import url
from dashboard.charts.head_map import Statistic
from dashboard.charts.head_scatter import Corner
from dashboard.charts.look import ADVANTAGE_SCALE, ATTENTION_SCALE
from dashboard.formats import NOTHING, power_of_ten
from dashboard.queries.entropy_bound import HeadBound
from services.contracts.probes.entropy_bound import OBSTACLE_BITS

KIND = "entropy_bound"
SPARSE_ABOVE, LOW_RANK_BELOW = 0.75, 0.1

_OBSTACLES = {
    "rotary": "a rotary embedding",
    "norm": "norms of queries and keys",
    "clip": "clipped queries and keys",
    "no matrices": "no matrices that give queries and keys",
}


def decimals(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}"


def log10(value: float | None) -> float | None:
    return None if value is None or value <= 0 else math.log10(value)


@dataclass(frozen=True)
class Metric:
    """A column of analysis.entropy_bound_heads."""

    name: str
    label: str
    meaning: str
    is_log10: bool = False  # of the column itself
    logarithmic: bool = False  # drawn by its decimal logarithm
    about_sigma: bool = False

    def drawn(self, row: HeadBound) -> float | None:
        value = getattr(row, self.name)
        return log10(value) if self.logarithmic and not self.is_log10 else value

    def statistic(self) -> Statistic:
        scale = ADVANTAGE_SCALE if self.about_sigma else ATTENTION_SCALE
        words = power_of_ten if self.logarithmic else decimals
        return Statistic(self.name, self.label, scale, words, logarithmic=self.logarithmic, tick_format=".2f")


_BOUND = "least entropy that the rows' own scores allow"
_TIGHTNESS = "norm of the scores that the entropy needs, over the norm there is; 1 at the bound"
_EFFECTIVE = "exp of the entropy of the pattern's normalized squared singular values"
_INPUTS = "‖X Xᵀ‖₂ of the layer's inputs, the same for all its heads"
METRICS = {
    metric.name: metric
    for metric in (
        Metric("entropy_nats", "entropy (nats)", "mean entropy of a row's weights over its keys"),
        Metric("log10_bound", "bound (nats)", _BOUND, is_log10=True, logarithmic=True),
        Metric("gap_min_nats", "least gap (nats)", "entropy less its bound, of the row where it is least"),
        Metric("tightness", "tightness", _TIGHTNESS),
        Metric("sigma", "σ", "Euclidean norm of a row's centred scores", logarithmic=True),
        Metric("top_1", "top 1", "mean weight of a row's largest entry"),
        Metric("top_8", "top 8", "mean weight of a row's eight largest entries"),
        Metric("top_5_percent", "top 5 %", "mean weight of the largest twentieth of a row's keys"),
        Metric("stable_rank", "stable rank", "‖A‖_F² / ‖A‖₂² of the pattern", logarithmic=True),
        Metric("effective_rank", "effective rank", _EFFECTIVE, logarithmic=True),
        Metric("weight_norm", "weight norm", "‖W_K W_Qᵀ‖₂ of the head", logarithmic=True, about_sigma=True),
        Metric("input_norm", "input norm", _INPUTS, logarithmic=True, about_sigma=True),
    )
}

SPARSITIES = ["top_8", "top_1", "top_5_percent"]
RANKS = ["effective_rank", "stable_rank"]


@dataclass(frozen=True)
class Plane:
    """Which statistics say sparse and low rank, and from where on; all in the address."""

    sparsity: str
    rank: str
    sparse_above: float
    low_rank_below: float  # of the rows that the rank could reach

    def kind(self, row: HeadBound) -> Corner | None:
        """None where it cannot be told: nothing measured, or too few rows."""
        mass, rank = getattr(row, self.sparsity), getattr(row, self.rank)
        if mass is None or rank is None or not row.rank_rows or self.too_few(row):
            return None
        low = rank <= self.low_rank_below * row.rank_rows
        return ("right" if mass >= self.sparse_above else "left", "low" if low else "high")

    def too_few(self, row: HeadBound) -> bool:
        """Whether no pattern of so few rows can be of low rank: every rank is 1 at least."""
        return bool(row.rank_rows) and self.low_rank_below * row.rank_rows <= 1

    def in_words(self, row: HeadBound) -> str:
        kind = self.kind(row)
        if kind:
            return CORNERS[kind]
        return CANNOT_BE_TOLD if self.too_few(row) else ""


CANNOT_BE_TOLD = "cannot be told"
CORNERS: dict[Corner, str] = {
    ("right", "high"): "sparse, not low rank",
    ("right", "low"): "sparse and low rank",
    ("left", "high"): "spread, not low rank",
    ("left", "low"): "spread and low rank",
}


def chosen_plane() -> Plane:
    sparsity, rank = (_among("sparsity", SPARSITIES), _among("rank", RANKS))
    return Plane(
        sparsity,
        rank,
        url.number("sparse", SPARSE_ABOVE, 0.0, 1.0),
        url.number("lowrank", LOW_RANK_BELOW, 0.0, 1.0),
    )


def _among(name: str, options: list[str]) -> str:
    asked = st.query_params.get(name)
    return asked if asked in options else options[0]


def obstacles_in_words(code: int) -> str:
    found = [words for step, words in _OBSTACLES.items() if code & OBSTACLE_BITS[step]]
    return " and ".join(found)


def bounds_in_words(rows: list[HeadBound]) -> str:
    """Whether weights and inputs bound the scores of this job's layers, and why not."""
    by_code: dict[int, set[int]] = {}
    for row in rows:
        if row.obstacles is not None:
            by_code.setdefault(row.obstacles, set()).add(row.layer)
    parts = []
    for code, layers in sorted(by_code.items()):
        where = "all layers" if len(by_code) == 1 else f"layer {', '.join(map(str, sorted(layers)))}"
        if code == 0:
            parts.append(f"weights and inputs bound the scores in {where}")
        else:
            parts.append(f"weights and inputs bound nothing in {where}: {obstacles_in_words(code)} in between")
    return "; ".join(parts)
