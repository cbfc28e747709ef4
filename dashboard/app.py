"""The dashboard: ``streamlit run dashboard/app.py`` with KEYHOLE_ANALYST_URL and KEYHOLE_API_URL set."""

from pathlib import Path

import streamlit as st

from dashboard.pages import menu

# Streamlit leaves twice the height of its bar empty above the title.
TIGHT = "<style>[data-testid=stMainBlockContainer] {padding-top: 4.75rem}</style>"
ICON = str(Path(__file__).with_name("icon.svg"))

st.set_page_config(page_title="Keyhole", page_icon=ICON, layout="wide")
st.logo(ICON)
st.html(TIGHT)
st.navigation(menu(), position="top").run()
