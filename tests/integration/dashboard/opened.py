"""The dashboard as an application under test, and all that a page says."""

from collections.abc import Callable
from pathlib import Path

from streamlit.testing.v1 import AppTest

APP = Path(__file__).resolve().parents[3] / "dashboard" / "app.py"
Open = Callable[..., AppTest]  # opened(page, **query) → the page, which has run


def texts(app: AppTest) -> str:
    elements = [*app.title, *app.markdown, *app.caption, *app.error, *app.info, *app.warning, *app.text, *app.code]
    return "\n".join(str(element.value) for element in elements)
