"""Sliders and number fields of the playground, whose values stand in the address."""

import streamlit as st

from dashboard import url


def slider(
    label: str, name: str, low: float, high: float, default: float, step: float, *, help: str | None = None
) -> float:
    """A slider; its value is written to the address when it is moved."""
    value = _on_grid(url.number(name, default, low, high), low, step)
    return st.slider(label, float(low), float(high), step=float(step), help=help, **url.bind_number(name, value))


def whole(label: str, name: str, low: int, high: int, default: int, *, help: str | None = None) -> int:
    """The same for whole numbers."""
    value = round(url.number(name, default, low, high))
    return st.slider(label, low, high, step=1, help=help, **url.bind_number(name, value))


def field(label: str, name: str, default: float, *, reach: float = 10.0) -> float:
    """A number field from −reach to reach."""
    value = url.number(name, default, -reach, reach)
    st.number_input(label, -reach, reach, step=0.1, format="%.3g", **url.bind_number(name, value))
    return value


def choice(label: str, name: str, options: dict[str, str]) -> str:
    """One of several; ``options`` by what stands in the address, with their labels."""
    names = list(options)
    st.segmented_control(
        label,
        names,
        required=True,
        format_func=options.__getitem__,
        **url.bind(name, st.query_params.get(name), names),
    )
    return st.session_state[f"{name}_choice"] or names[0]


def _on_grid(value: float, low: float, step: float) -> float:
    """The nearest place of a slider: a number of the address may lie between two."""
    return round(low + round((value - low) / step) * step, 10)
