"""Acknowledge alerts through the API, for viewers who paste a token. The dashboard itself has none."""

import os
from collections.abc import Sequence

import streamlit as st

from dashboard.problems import show
from services.client import Keyhole
from services.contracts.errors import KeyholeError


def acknowledge(alert_ids: Sequence[int], named: str, *, key: str) -> None:
    """A button to say that alerts were seen; ``named`` is how it calls them."""
    with st.popover(f"Acknowledge {named} …", icon=":material/done_all:"):
        api_url = os.environ.get("KEYHOLE_API_URL")
        if not api_url:
            st.caption("The dashboard does not know the API. In a terminal:")
            options = " ".join(f"--acknowledge {alert_id}" for alert_id in alert_ids)
            st.code(f"keyhole alerts {options}", language="bash")
            return
        token = st.text_input(
            "API token",
            type="password",
            key=f"api_token_{key}",
            persist_state="session",
            autocomplete="off",
            help="Scope submit; `keyhole token create` makes one. It is kept until this tab is closed.",
        )
        given = (token or "").strip()  # never an empty one: the client would look for the machine's own
        if st.button(f"Acknowledge {named}", type="primary", disabled=not given, key=f"do_acknowledge_{key}") and given:
            _call(api_url, given, alert_ids)


def _call(api_url: str, token: str, alert_ids: Sequence[int]) -> None:
    try:
        with Keyhole(url=api_url, token=token) as client:
            number = client.acknowledge(alert_ids)
    except KeyholeError as error:
        show(error)
    else:
        st.toast(f"{number} alerts acknowledged.")
        st.rerun()
