"""The dashboard in a real browser: from jobs to one result and one head of it, and from runs to their comparison."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.conftest import MigratedDatabase
from tests.integration.dashboard import samples, training_rows

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM, CHROMEDRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1440,1600",
)
LAYERS, HEADS = 6, 4

pytestmark = pytest.mark.browser


@pytest.fixture
def browser() -> Iterator[webdriver.Chrome]:
    if not (CHROMIUM.exists() and CHROMEDRIVER.exists()):
        if os.environ.get("CI"):
            pytest.fail(f"{CHROMIUM} and {CHROMEDRIVER} are needed in CI: install chromium and chromium-driver")
        pytest.skip(f"no browser: {CHROMIUM} or {CHROMEDRIVER} is missing (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(CHROMEDRIVER)))
    yield driver
    driver.quit()


@pytest.fixture
def dashboard(database: MigratedDatabase, tmp_path: Path) -> Iterator[str]:
    """A dashboard process, started from another folder; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (tmp_path / "dashboard.log").open("w+")
    command = [sys.executable, "-m", "streamlit", "run", str(ROOT / "dashboard" / "app.py")]
    process = subprocess.Popen(
        [*command, "--server.address", "127.0.0.1", "--server.port", str(port)],
        cwd=tmp_path,
        env={**os.environ, "KEYHOLE_ANALYST_URL": database.analyst_url, "PYTHONPATH": str(ROOT)},
        stdout=log,
        stderr=log,
    )
    try:
        _wait_until_healthy(process, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)
        log.close()


def _wait_until_healthy(process: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(300):
        assert process.poll() is None, "the dashboard ended at its start"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail("the dashboard did not become healthy in a minute")


def test_a_viewer_clicks_from_the_jobs_to_a_result_and_a_head(
    browser: webdriver.Chrome, dashboard: str, database: MigratedDatabase
) -> None:
    with database.connect() as conn:
        result = samples.insert_result(conn, samples.gradient_scale_columns(LAYERS, HEADS, 4, [3, 5, 7]), label="mine")
        samples.insert_job(conn, "running", label="another", shards_done=3)

    browser.get(dashboard)
    table = _found(browser, lambda: browser.find_element(By.CSS_SELECTOR, '[data-testid="stDataFrame"] canvas'))
    _click_at(browser, table, x=300, y=38 + 36 + 18)  # the second row: the succeeded job
    _found(browser, lambda: _with_text(browser, "h1", f"Job {result}"))
    assert browser.current_url.endswith(f"?job={result}")

    _found(browser, lambda: _with_text(browser, "button", "Open the result")).click()
    _found(browser, lambda: _with_text(browser, "h1", "Gradient scale"))
    heat_map = _found(browser, lambda: browser.find_elements(By.CSS_SELECTOR, ".js-plotly-plot .coloraxis, .hm")[0])
    assert heat_map
    assert f"jobs={result}" in browser.current_url

    cells = _found(browser, lambda: browser.find_element(By.CSS_SELECTOR, ".st-key-head_map .nsewdrag"))
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", cells)
    size = cells.size
    _click_at(browser, cells, x=size["width"] * 4.5 / LAYERS, y=size["height"] * 1.5 / HEADS)
    _found(browser, lambda: _with_text(browser, "h3", "Layer 4, head 1"))
    assert "layer=4&head=1" in browser.current_url

    foreign = [entry["message"] for entry in browser.get_log("browser") if "127.0.0.1" not in entry["message"]]
    assert [message for message in foreign if "net::ERR" in message] == []  # nothing is fetched from elsewhere


def test_a_viewer_ticks_runs_compares_them_and_opens_one(
    browser: webdriver.Chrome, dashboard: str, database: MigratedDatabase
) -> None:
    with database.connect() as conn:
        control, natq, _ = (training_rows.insert(conn, *run) for run in (("control", 0), ("natq", 0), ("control", 1)))

    browser.get(f"{dashboard}/runs")
    table = _found(browser, lambda: browser.find_element(By.CSS_SELECTOR, '[data-testid="stDataFrame"] canvas'))
    for row in (1, 2):  # the newest stands first
        _click_at(browser, table, x=16, y=38 + 36 * row + 18)
    _found(browser, lambda: _with_text(browser, "button", "Compare 2 chosen")).click()
    _found(browser, lambda: _with_text(browser, "h1", "2 runs"))
    assert browser.current_url.endswith(f"runs?runs={control}%2C{natq}")
    names = _found(browser, lambda: browser.find_elements(By.CSS_SELECTOR, ".js-plotly-plot .legendtext"))
    assert [name.get_attribute("data-unformatted") for name in names[:2]] == [
        f"run {control} · control · seed 0",
        f"run {natq} · natq · seed 0",
    ]

    _found(browser, lambda: _with_text(browser, "a", "All runs")).click()
    _found(browser, lambda: _with_text(browser, "h1", "Runs"))
    table = _found(browser, lambda: browser.find_element(By.CSS_SELECTOR, '[data-testid="stDataFrame"] canvas'))
    _click_at(browser, table, x=300, y=38 + 36 + 18)
    _found(browser, lambda: _with_text(browser, "h1", f"Run {natq}"))


def _found(browser: webdriver.Chrome, look: Callable[[], Any]) -> Any:
    """What ``look`` finds, once it finds something; the page may replace its elements at any time."""

    def quietly(_: webdriver.Chrome) -> Any:
        try:
            return look()
        except Exception:  # stale or missing yet
            return None

    return WebDriverWait(browser, 60, poll_frequency=0.3).until(quietly)


def _with_text(browser: webdriver.Chrome, tag: str, text: str) -> WebElement | None:
    return next((each for each in browser.find_elements(By.TAG_NAME, tag) if text in each.text), None)


def _click_at(browser: webdriver.Chrome, element: WebElement, x: float, y: float) -> None:
    """Click at a place measured from the element's upper left corner, once it has stopped moving."""
    place = None
    for _ in range(50):
        before, place = place, (element.rect["x"], element.rect["y"])
        if before == place:
            break
        time.sleep(0.2)
    size = element.size
    actions = ActionChains(browser)
    actions.move_to_element_with_offset(element, int(x - size["width"] / 2), int(y - size["height"] / 2))
    actions.pause(0.3).click().perform()
