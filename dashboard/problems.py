"""Errors shown as a sentence and a next step instead of a traceback."""

import logging
from collections.abc import Callable

import streamlit as st

from dashboard.formats import markdown_text, markdown_words
from services.contracts.errors import ErrorCode, KeyholeError

AGAIN_S = 5


def guarded(page: Callable[[], None]) -> None:
    """Run a page; where the database is down, say so and try again every few seconds until it answers."""
    try:
        page()
    except KeyholeError as error:
        logging.getLogger(__name__).warning("%s: %s (%s)", error.code, error.message, error.__cause__)
        show(error)
        if error.code is ErrorCode.UNAVAILABLE:
            st.session_state["problem_shown"] = True
            _try_again()


def show(error: KeyholeError) -> None:
    st.error(f"**{markdown_text(error.message)}**\n\n{markdown_words(error.hint)}", icon=":material/error:")


@st.fragment(run_every=AGAIN_S)
def _try_again() -> None:
    if not st.session_state.pop("problem_shown", False):
        st.rerun()
    if st.button("Try again now", icon=":material/refresh:"):
        st.rerun()
