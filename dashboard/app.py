"""The dashboard: ``streamlit run dashboard/app.py`` with KEYHOLE_ANALYST_URL and KEYHOLE_API_URL set."""

import streamlit as st

from dashboard.pages import all_pages

st.set_page_config(page_title="Keyhole", page_icon=":material/key_vertical:", layout="wide")
st.navigation(all_pages(), position="top").run()
