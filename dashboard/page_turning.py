"""The buttons below a long list that lead to its next pages; where a page begins is in the address."""

from collections.abc import Callable

import streamlit as st

from dashboard import url
from dashboard.queries.paging import Line, Page


def page_buttons(page: Page[Line], number: Callable[[Line], int]) -> None:
    """Newer and older, if there are such lines; ``number`` is what a line is sorted by."""
    if not (page.older or page.newer):
        return
    with st.container(horizontal=True, gap="small"):
        if st.button("Newer", icon=":material/chevron_left:", disabled=not page.newer):
            _go(after=number(page.lines[0]))
        if st.button("Older", icon=":material/chevron_right:", icon_position="right", disabled=not page.older):
            _go(before=number(page.lines[-1]))


def _go(before: int | None = None, after: int | None = None) -> None:
    url.write("before", before)
    url.write("after", after)
    st.rerun()
