"""The three-key example of the playground."""

import numpy as np
import pandas as pd
import streamlit as st

from dashboard.charts.three_keys import three_keys
from dashboard.downloads import CHART_CONFIG
from dashboard.examples.three_keys import KEYS, D, Picture, ThreeKeys, deadlock, picture
from dashboard.views.playground_downloads import downloads
from dashboard.views.playground_numbers import choice, field, slider

MODES = {"deadlock": "Deadlock", "free": "Free"}
START = deadlock(0.05, 1.0)  # where moving everything begins


def three_keys_example() -> None:
    controls, shown = st.columns([1, 3])
    with controls:
        mode = choice("Setting", "setting", MODES)
        example = _deadlock() if mode == "deadlock" else _free()
    found = picture(example)
    with shown:
        _figures(found)
        figure = three_keys(example, found)
        st.plotly_chart(
            figure,
            key="three_keys",
            config=CHART_CONFIG,
            alt="Keys with the query update, and values with output, target and the Jacobian's ellipse.",
        )
        st.caption(
            "Size of keys and values: attention weight. Left: each key's share of the query update (thin) and the "
            "update itself, enlarged by the factor that stands at it. Right: the ellipse is where query moves of one "
            "length take the output, in units of the largest singular value; dotted: the weakest direction. An output "
            "correction −δ along a flat side of the ellipse hardly moves the query."
        )
        table = _table(example, found)
        st.dataframe(table, hide_index=True, key="three_keys_table")
        downloads("three-keys", table, figure)


def _deadlock() -> ThreeKeys:
    log10_epsilon = slider(
        "log₁₀ ε: attention of key 3", "epsilon", -6.0, -0.2, -2.0, 0.1, help="keys 1 and 2 share the rest equally"
    )
    advantage = slider("M: advantage of key 3", "advantage", 0.1, 10.0, 1.0, 0.1)
    epsilon = 10.0**log10_epsilon
    st.markdown(
        f"Key 3 is the one that would help (advantage M), but it has only ε = **{epsilon:.3g}** of the attention. A "
        f"key moves the query by attention × advantage: by εM/√d = **{epsilon * advantage / np.sqrt(D):.3g}** towards "
        f"key 3, where its advantage alone would give M/√d = {advantage / np.sqrt(D):.3g}. With a tenth of the "
        "attention it must be ten times as useful to have the same effect. The pulls of keys 1 and 2 cancel."
    )
    return deadlock(epsilon, advantage)


def _free() -> ThreeKeys:
    st.caption("Logits; attention is their softmax.")
    logits = np.array([slider(f"logit {i + 1}", f"l{i + 1}", -12.0, 12.0, _logit(i), 0.1) for i in range(3)])
    st.caption("Target of the output; δ = y − target.")
    target = np.array(_pair("target", "t", START.target))
    with st.expander("Keys and values", expanded=False):
        keys = np.array([_pair(f"k{i + 1}", f"k{i + 1}", KEYS[i]) for i in range(3)])
        values = np.array([_pair(f"v{i + 1}", f"v{i + 1}", START.values[i]) for i in range(3)])
    return ThreeKeys(logits, keys, values, target)


def _logit(index: int) -> float:
    return round(float(START.logits[index] - START.logits.max()), 1)


def _pair(label: str, name: str, default: np.ndarray) -> tuple[float, float]:
    left, right = st.columns(2)
    with left:
        x = field(f"{label}, x", f"{name}x", round(float(default[0]), 3))
    with right:
        y = field(f"{label}, y", f"{name}y", round(float(default[1]), 3))
    return x, y


def _figures(found: Picture) -> None:
    figures = {
        "Query update": (f"{np.linalg.norm(found.update):.3g}", "its length, ‖∇_q L‖ = ‖Jᵀδ‖"),
        "Output correction": (f"{np.linalg.norm(found.delta):.3g}", "‖δ‖, distance of y from the target"),
        "Transmitted": (
            f"{np.linalg.norm(found.update) / np.linalg.norm(found.delta):.3g}" if found.delta.any() else "–",
            "‖Jᵀδ‖ / ‖δ‖: between the smallest and the largest singular value",
        ),
        "Largest singular value": (f"{found.singular_values[0]:.3g}", "of the Jacobian ∂y/∂q"),
        "Smallest / largest": (f"{found.flatness:.3g}", "how flat the ellipse is"),
    }
    for column, (name, (value, told)) in zip(st.columns(len(figures)), figures.items(), strict=True):
        column.metric(name, value, help=told)


def _table(example: ThreeKeys, found: Picture) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Key": [1, 2, 3],
            "Logit": example.logits,
            "Attention": found.attention,
            "Advantage": found.advantage,
            "Attention × advantage": found.attention * found.advantage,
            "Update, x": found.contributions[:, 0],
            "Update, y": found.contributions[:, 1],
        }
    )
