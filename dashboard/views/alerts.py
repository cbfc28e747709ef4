"""Alerts: what watches look at, and what their rules raised. ``?watch=3`` and ``?alert=12`` show one in full."""

from collections.abc import Callable

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from dashboard import url
from dashboard.connection import reading
from dashboard.live import STEADY
from dashboard.pages import ALERTS
from dashboard.problems import guarded, show
from dashboard.queries import alerts as alert_queries
from dashboard.queries.alerts import Filters
from dashboard.views.alert_detail import alert_detail
from dashboard.views.alert_list import alert_list, downloads
from dashboard.views.watch_list import watch_detail, watch_list
from services.contracts.errors import KeyholeError

RENEW_S = 5
COMMAND = "keyhole watch run:1 --probe attention_profile --rule 'entropy_nats head below 0.5' --rule 'loss jump 0.5'"


def page() -> None:
    st.html(STEADY)
    st.title("Alerts")
    with reading() as conn:
        known = alert_queries.watches(conn)
        options = alert_queries.options(conn)
    if not known:
        st.markdown("Watches submit probes for every new checkpoint of a run, and raise alerts on what comes back.")
        st.info("Nothing is watched yet. This command watches a run:", icon=":material/rocket_launch:")
        st.code(COMMAND, language="bash")
        return
    filters = _filters([watch.watch_id for watch in known], options)
    st.fragment(_live, run_every=RENEW_S)(filters)
    downloads(filters)


def _live(filters: Filters) -> None:
    """The part that renews itself. A failing database leaves a sentence, and the next run tries again."""
    try:
        with reading() as conn:
            known = alert_queries.watches(conn) if filters.watch is None else []
            watched = alert_queries.watch(conn, filters.watch) if filters.watch is not None else None
            number = url.integer("alert")
            chosen = alert_queries.alert(conn, number) if number is not None else None
    except KeyholeError as error:
        show(error)
        return
    if number is not None:
        alert_detail(number, chosen)
    if watched is not None:
        watch_detail(watched)
    elif filters.watch is not None:
        st.warning(f"There is no watch {filters.watch}; it may have been deleted.", icon=":material/warning:")
        st.page_link(ALERTS, label="All watches", icon=":material/arrow_back:", query_params={})
    else:
        watch_list(known)
    alert_list(filters)


def _filters(watches: list[int], options: alert_queries.Options) -> Filters:
    watch, run, metric, layer, head, seen = st.columns([2, 2, 3, 1, 1, 2])
    asked_run, asked_watch = url.integer("run"), url.integer("watch")
    return Filters(
        watch=_numbered(watch, "Watch", "watch", _with(watches, asked_watch)),
        run=_numbered(run, "Run", "run", _with(options.runs, asked_run)),
        job=url.integer("job"),
        metric=metric.selectbox(
            "Metric",
            options.metrics,
            index=None,
            key="metric",
            placeholder="any",
            bind="query-params",
            on_change=_first_page,
        ),
        layer=_index(layer, "Layer", "layer"),
        head=_index(head, "Head", "head"),
        seen=seen.selectbox(
            "Acknowledged",
            ["no", "yes"],
            index=None,
            key="seen",
            placeholder="any",
            bind="query-params",
            on_change=_first_page,
        ),
    )


def _with(numbers: list[int], asked: int | None) -> list[int]:
    return numbers if asked is None or asked in numbers else [asked, *numbers]


def _numbered(column: DeltaGenerator, label: str, key: str, options: list[int]) -> int | None:
    """A choice among numbers, which the address has as such."""
    bound = url.bind(key, url.integer(key), [None, *options])
    return column.selectbox(
        label,
        [None, *options],
        format_func=lambda number: "any" if number is None else str(number),
        placeholder="any",
        key=bound["key"],
        on_change=_then_first_page(bound["on_change"]),
    )


def _index(column: DeltaGenerator, label: str, key: str) -> int | None:
    bound = url.bind_number(key, url.integer(key))  # type: ignore[arg-type]  # none is an empty field
    return column.number_input(
        label, min_value=0, step=1, value=None, placeholder="any", key=bound["key"],
        on_change=_then_first_page(bound["on_change"]),
    )  # fmt: skip


def _then_first_page(write: Callable[[], None]) -> Callable[[], None]:
    def changed() -> None:
        write()
        _first_page()

    return changed


def _first_page() -> None:
    for name in ("before", "after", "alert"):
        st.query_params.pop(name, None)


guarded(page)
