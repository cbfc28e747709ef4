"""The credit loop of the playground."""

import numpy as np
import pandas as pd
import streamlit as st

from dashboard.charts.credit_loop import credit_loop
from dashboard.downloads import CHART_CONFIG
from dashboard.examples.credit_loop import CreditLoop, Trajectory, play, start
from dashboard.views.playground_downloads import downloads
from dashboard.views.playground_numbers import choice, slider, whole

LOSSES = {"delta": "δ stays as it is", "target": "½‖y − target‖²"}


def credit_loop_example() -> None:
    controls, shown = st.columns([1, 3])
    with controls:
        loop, steps = _controls()
        course = play(loop, steps)
        step = whole("Step shown", "step", 0, steps, 0, help="the figure plays on from here")
    with shown:
        _figures(course, step)
        figure = credit_loop(course, step)
        st.plotly_chart(
            figure,
            key="credit_loop",
            config=CHART_CONFIG,
            alt="Attention weights, advantages and log odds of each source by step; the numbers are in the CSV below.",
        )
        st.caption(
            "Each step is gradient descent on the value matrix and on the scores of one query, inputs held (26–33). "
            "Source 1 begins with the score gap, the last source with a value of its own. A source with more attention "
            "moves more of the value matrix along its input; where inputs differ, that raises its own advantage most, "
            "and advantage times attention is what its score gains."
        )
        st.dataframe(
            _table(course, step),
            hide_index=True,
            key="credit_loop_table",
            column_config={
                "Predicted change of advantage": st.column_config.NumberColumn(
                    help="by the next step on the value matrix alone, equation 29"
                ),
                "Change of score": st.column_config.NumberColumn(help="by the next step, equation 30"),
            },
        )
        downloads("credit-loop", _whole_table(course), figure)


def _controls() -> tuple[CreditLoop, int]:
    loss = choice("Loss", "loss", LOSSES)
    target = slider("Target", "target", 0.1, 5.0, 1.0, 0.1) if loss == "target" else None
    count = whole("Sources", "sources", 2, 6, 4)
    gap = slider("Score gap of source 1", "gap", 0.0, 4.0, 0.2, 0.05, help="ε in equation 26")
    value = slider("Value of the last source", "useful", 0.0, 3.0, 0.0, 0.05, help="its advantage at the start, mostly")
    depth = slider("How deep it is buried", "depth", 0.0, 8.0, 0.0, 0.1, help="by how much its score is lower")
    similarity = slider(
        "Similarity of inputs", "similarity", 0.0, 0.95, 0.0, 0.05, help="cosine between the inputs of any two sources"
    )
    value_rate = slider("η_V: step on the value matrix", "eta_v", 0.0, 1.0, 0.3, 0.01)
    score_rate = slider("η_s: step on the scores", "eta_s", 0.0, 1.0, 0.3, 0.01)
    steps = whole("Steps", "steps", 5, 300, 80)
    scores, values = np.zeros(count), np.zeros(count)
    scores[0], scores[-1], values[-1] = gap, scores[-1] - depth, value
    loop = start(scores, values, similarity=similarity, value_rate=value_rate, score_rate=score_rate, target=target)
    return loop, steps


def _figures(course: Trajectory, step: int) -> None:
    weights, advantages = course.attention[step], course.advantage[step]
    top = int(weights.argmax())
    others = np.delete(np.arange(len(weights)), top)
    next_ = int(others[weights[others].argmax()])
    lead = course.predicted_gain[step, top] - course.predicted_gain[step, next_]
    growth = course.score_step[step, top] - course.score_step[step, next_]
    figures = {
        "Top source": (f"{top + 1}: {weights[top]:.3f}", "its number and attention weight"),
        "Its advantage": (f"{advantages[top]:+.3g}", "A = −δ·(v − y)"),
        "Score gap": (
            f"{course.log_odds(top, next_)[step]:.3g}",
            "to the next source: log of the ratio of their weights",
        ),
        "Lead gains": (
            f"{lead:+.3g}",
            "change of it by the next step on the value matrix, against the next source",
        ),
        "Log odds gain": (f"{growth:+.3g}", "change of the gap by the next step on the scores"),
        "Loss": (f"{float(course.loss[step]):.3g}", "δ·y, or half the squared distance from the target"),
    }
    for column, (name, (value, told)) in zip(st.columns(len(figures)), figures.items(), strict=True):
        column.metric(name, value, help=told)


def _table(course: Trajectory, step: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Source": np.arange(course.attention.shape[1]) + 1,
            "Score": course.scores[step],
            "Attention": course.attention[step],
            "Advantage": course.advantage[step],
            "Predicted change of advantage": course.predicted_gain[step],
            "Change of score": course.score_step[step],
        }
    )


def _whole_table(course: Trajectory) -> pd.DataFrame:
    """Every step and source, for the CSV."""
    steps = range(len(course.loss))
    return pd.concat([_table(course, step).assign(Step=step, Loss=course.loss[step]) for step in steps])
