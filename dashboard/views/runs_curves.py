"""The curves of the page of runs: losses and any other number by step or by tokens, run by run or as means over seeds,
less a reference if asked."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.charts.curves import Curve, curves
from dashboard.charts.look import variant_places
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.queries import training_metrics as queries
from dashboard.queries.runs import Run
from dashboard.queries.text import as_text
from dashboard.queries.training_metrics import Asked, GroupPoint, Level, Metric, Point
from dashboard.run_names import Group, groups, titles
from dashboard.training_metrics import LOSS, VALIDATION_LOSS, in_order, named, signed

MOST_CHARTS = 6
RUNS_APART, SEEDS_TOGETHER = "runs", "seeds"
SHOWN = {RUNS_APART: "each run", SEEDS_TOGETHER: "mean over seeds"}
AXES = {"step": "by step", "tokens": "by tokens"}
MODEL = "model"
_NOTHING = "nothing"


@dataclass(frozen=True)
class Curves:
    """What the controls select. ``layer`` None is the model: its own number, or the mean over layers of theirs."""

    metrics: Sequence[Metric]
    together: bool
    tokens: bool
    logarithmic: bool
    start: int
    layer: int | None
    reference: int | None  # a run; of means over seeds, all runs that are alike with it

    def level(self, metric: Metric) -> Level:
        if self.layer is not None and metric.of_layers:
            return self.layer
        return "model" if metric.of_model else "layers"


def asked_curves(runs: Sequence[Run]) -> Curves | None:
    """The controls; None after saying that there is nothing to draw."""
    numbers = [run.run_id for run in runs]
    with reading() as conn:
        found = {metric.name: metric for metric in queries.metrics(conn, numbers)}
    found = {name: found[name] for name in in_order(list(found)) if found[name].of_model or found[name].of_layers}
    if not found:
        imported = [run for run in runs if run.job_id is None]
        if len(imported) == len(runs):
            st.info("Imported runs have no numbers of their training; they have checkpoints.", icon=":material/info:")
        else:
            also = " Imported runs have none." if imported else ""
            st.info(
                f"No numbers are stored yet: they come with the first step that is looked at.{also}",
                icon=":material/hourglass_empty:",
            )
        return None
    metrics = _metrics(found)
    alike = groups(runs)
    several = len(runs) > 1
    with reading() as conn:
        layers = max((queries.layer_count(conn, numbers, m.name) for m in metrics if m.of_layers), default=0)
    widths = [2] * several + [2] + [3] * several + [2] + [2] * bool(layers) + [2]
    widths += [13 - sum(widths)] if sum(widths) < 13 else []
    columns = iter(st.columns(widths, vertical_alignment="bottom"))
    together = False
    if several:
        default = SEEDS_TOGETHER if len(alike) < len(runs) and len(runs) > 4 else RUNS_APART
        options = [RUNS_APART, SEEDS_TOGETHER]
        asked = st.query_params.get("show", default)
        with next(columns):
            st.selectbox("Lines", options, format_func=SHOWN.__getitem__, **url.bind("show", asked, options))
        together = st.session_state["show_choice"] == SEEDS_TOGETHER
    with next(columns):
        axes = list(AXES) if any(run.tokens_per_step for run in runs) else ["step"]
        st.selectbox("Axis", axes, format_func=AXES.__getitem__, **url.bind("x", st.query_params.get("x"), axes))
    reference = None
    if several:
        with next(columns):
            reference = _reference(runs, alike if together else None)
    with next(columns):
        largest = max(1, *(run.steps_done for run in runs))
        start = int(url.number("start", 0, 0, largest))
        st.number_input("From step", min_value=0, max_value=largest, **url.bind_number("start", start))
    layer = None
    if layers:
        with next(columns):
            layer = _layer(layers)
    with next(columns):
        logarithmic = st.toggle(
            "Logarithmic", value=st.query_params.get("scale") == "log", key="log_choice", on_change=_write_scale
        )
    return Curves(
        metrics,
        together,
        st.session_state["x_choice"] == "tokens",
        logarithmic and reference is None,
        start,
        layer,
        reference,
    )


def _metrics(found: dict[str, Metric]) -> list[Metric]:
    """The chosen ones, by name in the address; losses where none is named."""
    names = list(found)
    asked = [name for name in st.query_params.get("numbers", "").split(",") if name in found]
    asked = asked or [name for name in (VALIDATION_LOSS, LOSS) if name in found] or names[:1]
    st.multiselect(
        "Numbers",
        names,
        format_func=lambda name: named(name).label,
        max_selections=MOST_CHARTS,
        **url.bind("numbers", asked, names),
    )
    return [found[name] for name in asked]


def _reference(runs: Sequence[Run], alike: Sequence[Group] | None) -> int | None:
    if len(runs) < 2 or (alike is not None and len(alike) < 2):
        return None
    names = titles(runs) if alike is None else {group.numbers[0]: group.label for group in alike}
    options = [None, *names]
    asked = url.integer("reference")
    if alike is not None and asked is not None:
        asked = next((group.numbers[0] for group in alike if asked in group.numbers), None)
    return st.selectbox(
        "Difference from",
        options,
        format_func=lambda number: _NOTHING if number is None else names[number],
        placeholder=_NOTHING,
        **url.bind("reference", asked, options),
    )


def _layer(layers: int) -> int | None:
    options: list[int | str] = [MODEL, *range(layers)]
    asked = url.integer("level")
    chosen = st.selectbox(
        "Layer",
        options,
        help="model: the mean over layers",
        **url.bind("level", MODEL if asked is None else asked, options),
    )
    return chosen if isinstance(chosen, int) else None


def _write_scale() -> None:
    url.write("scale", "log" if st.session_state["log_choice"] else None)


def draw_curves(runs: Sequence[Run], asked: Curves) -> None:
    """A chart for each metric."""
    for metric in asked.metrics:
        draw(runs, metric, asked)


def draw(runs: Sequence[Run], metric: Metric, asked: Curves, *, kind: str = "runs") -> None:
    """One number of these runs, with its data."""
    label = named(metric.name)
    level = asked.level(metric)
    alike = groups(runs)
    reference: Sequence[int] = ()
    if asked.reference is not None:
        of_group = next((group.numbers for group in alike if asked.reference in group.numbers), [asked.reference])
        reference = of_group if asked.together else [asked.reference]
    wanted = Asked([run.run_id for run in runs], metric.name, level, asked.start, reference)
    rows: Sequence[Point] | Sequence[GroupPoint]
    with reading() as conn:
        if asked.together:
            statement, values = queries.group_curves_sql(wanted, [group.numbers for group in alike])
            rows = queries.group_curves(conn, wanted, [group.numbers for group in alike])
            lines = _means(rows, alike, asked.tokens)
        else:
            statement, values = queries.curves_sql(wanted)
            rows = queries.curves(conn, wanted)
            lines = _each(rows, runs, asked.tokens)
    where = f", layer {level}" if isinstance(level, int) else ", mean over layers" if level == "layers" else ""
    title = f"{label.label}{where}"
    if not rows:
        whose = "of these runs and the reference at the same steps" if reference else "of these runs"
        st.caption(f"There is no {title} {whose} from step {asked.start:,} on.")
        return
    figure = curves(
        lines,
        x_title="tokens" if asked.tokens else "step",
        y_title=f"difference in {title}" if reference else title,
        words=signed if reference else label.words,
        logarithmic=asked.logarithmic,
        zero=bool(reference),
    )
    st.plotly_chart(
        figure, key=f"curve_{metric.name}", config=CHART_CONFIG, alt=f"{title} by step; the numbers are in the CSV."
    )
    caption = f"**{title}**: {label.meaning}." if label.meaning else f"**{title}**."
    if asked.together:
        caption += " Lines: means over seeds; bands: one standard deviation, where there are two seeds or more."
    if reference:
        caption += " Shown is the difference from the reference at the same steps."
    st.caption(caption)
    data = pd.DataFrame([asdict(row) for row in rows])
    if asked.together:
        data.insert(0, "group", [alike[number].label for number in data.pop("number")])
    sql_and_data(kind, metric.name, as_text(statement, **values), data, figure)


def _each(rows: Sequence[Point], runs: Sequence[Run], tokens: bool) -> list[Curve]:
    names = titles(runs)
    scale = {run.run_id: (run.tokens_per_step or 1) if tokens else 1 for run in runs}
    places = {run.run_id: place for place, run in enumerate(runs)}
    lines = []
    for number, points in groupby(rows, key=lambda point: point.run_id):
        of_run = list(points)
        x = [point.step * scale[number] for point in of_run]
        lines.append(Curve(names[number], x, [point.value for point in of_run], places[number]))
    return lines


def _means(rows: Sequence[GroupPoint], alike: Sequence[Group], tokens: bool) -> list[Curve]:
    lines = []
    places = variant_places(group.variant for group in alike)
    for number, points in groupby(rows, key=lambda point: point.number):
        of_group, group = list(points), alike[number]
        scale = (group.runs[0].tokens_per_step or 1) if tokens else 1
        lines.append(
            Curve(
                _with_seeds(group),
                [point.step * scale for point in of_group],
                [point.mean for point in of_group],
                places[number],
                low=[point.mean - (point.sd or 0.0) for point in of_group] if len(group.runs) > 1 else (),
                high=[point.mean + (point.sd or 0.0) for point in of_group] if len(group.runs) > 1 else (),
                hover=[_spread(point) for point in of_group],
            )
        )
    return lines


def _with_seeds(group: Group) -> str:
    number = len(group.runs)
    return f"{group.label} · {number} seed{'' if number == 1 else 's'}"


def _spread(point: GroupPoint) -> str:
    if point.sd is None:
        return ""
    return f" ± {point.sd:.2g}, {point.runs} runs from {point.low:.5g} to {point.high:.5g}"
