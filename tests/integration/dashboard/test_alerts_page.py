"""The page of alerts: watches, what they raised, one alert in full, and acknowledging."""

import psycopg
import pytest

from dashboard.pages import ALERTS
from dashboard.queries.alerts import MOST_WATCHES
from db.repositories import alerts, api_tokens, watch_models, watch_rules, watches
from db.repositories.alerts import NewAlert
from db.repositories.watch_rules import Place
from services.contracts.settings import Settings
from services.contracts.states import JobState, Scope
from tests.conftest import MigratedDatabase
from tests.integration.api.conftest import served
from tests.integration.dashboard import samples
from tests.integration.dashboard.opened import Open, texts
from tests.integration.new_runs import trained_run

RULES = [
    {"type": "metric", "metric": "entropy_nats", "of": "attention_profile", "level": "head", "below": 0.5},
    {"type": "loss_jump", "above": 0.5},
]
HOSTILE = "*bold* [link](http://x) :red[r]"


def new_alert(watch_id: int, **changes) -> NewAlert:
    fields = {
        "watch_id": watch_id, "rule": 0, "run_id": None, "job_id": None, "source": None, "step": 100,
        "metric": "entropy_nats", "matrix": None, "layer": 1, "head": 2, "value": 0.3, "threshold": 0.5, "others": 0,
        "message": "entropy_nats of layer 1 head 2 is 0.3 at step 100.",
    }  # fmt: skip
    return NewAlert(**(fields | changes))


@pytest.fixture
def watch_id(owner: psycopg.Connection) -> int:
    """A watch of a run with three alerts, of which the last is about the loss."""
    run_id = trained_run(owner, state=JobState.RUNNING)
    body = {
        "kinds": ["attention_profile"],
        "rules": RULES,
        "dataset": "builtin:python-docs",
        "webhook": "https://h/secret",
    }
    number = watches.insert(owner, HOSTILE, f"run:{run_id}", body, None)
    job_id = samples.insert_job(owner, "succeeded")
    watch_models.add(owner, number, f"run:{run_id}@100", run_id=run_id, step=100, judged=True)
    watch_models.add(owner, number, f"run:{run_id}@200", run_id=run_id, step=200, judged=True, problem="job 9 failed")
    watch_rules.met(owner, number, 0, run_id, {Place(1, 2): (100, 0.3), Place(1, 3): (100, 0.4)})
    common = {"run_id": run_id, "job_id": job_id, "source": f"run:{run_id}@100"}
    raised = [
        new_alert(number, **common),
        new_alert(number, **common, head=3, others=47),
        new_alert(
            number, run_id=run_id, rule=1, metric="loss_nats", layer=None, head=None, value=float("inf"), step=120
        ),
    ]
    alerts.insert(owner, raised, deliver=False)
    return number


def test_without_watches_the_page_says_how_to_make_one(open_page: Open) -> None:
    assert "keyhole watch run:1" in texts(open_page(ALERTS))


def test_a_watch_without_alerts_is_listed_and_says_so(owner: psycopg.Connection, open_page: Open) -> None:
    number = watches.insert(owner, "quiet", "path:/runs/*", {"kinds": [], "rules": RULES[:1]}, None)
    owner.execute("UPDATE keyhole.watch SET problem = 'The hub *does not* answer.' WHERE id = %s", (number,))
    app = open_page(ALERTS)
    listed = app.dataframe[0].value
    assert (listed["Watch"][0], listed["State"][0]) == (number, ["problem"])
    assert "No rule has been met yet" in texts(app)
    assert r"The hub \*does not\* answer" in texts(app)


def test_watches_and_alerts_are_listed_newest_first(watch_id: int, open_page: Open) -> None:
    watch, raised = (each.value for each in open_page(ALERTS).dataframe)
    assert tuple(watch.iloc[0][["Watch", "Checkpoints", "Alerts", "New", "Met now"]]) == (watch_id, "2/2", 3, 3, 2)
    assert watch["Rules"][0].startswith("attention_profile.entropy_nats head")
    assert list(raised["Alert"]) == [3, 2, 1]
    assert list(raised["Metric"]) == ["loss_nats", "entropy_nats", "entropy_nats"]
    assert raised["And more"][1] == 47


def test_filters_of_the_address_narrow_the_list(watch_id: int, open_page: Open) -> None:
    def listed(**query: str) -> list[int]:
        frames = open_page(ALERTS, **query).dataframe
        found = [each.value for each in frames if "Alert" in each.value.columns]
        return list(found[0]["Alert"]) if found else []

    assert listed(metric="loss_nats") == [3]
    assert listed(head="3", layer="1") == [2]
    assert listed(run="1", watch=str(watch_id)) == [3, 2, 1]
    assert listed(run="7") == []
    assert listed(seen="yes") == []
    assert listed(job="2") == [2, 1]
    assert "No alert matches these filters" in texts(open_page(ALERTS, seen="yes"))


def test_a_watch_in_the_address_shows_rules_and_checkpoints(watch_id: int, open_page: Open) -> None:
    app = open_page(ALERTS, watch=str(watch_id))
    rules = next(each.value for each in app.dataframe if "Reads" in each.value.columns)
    assert list(rules["Alerts"]) == [2, 1]
    assert list(rules["Met now at"]) == [2, 0]
    seen = next(each.value for each in app.dataframe if "Checkpoint" in each.value.columns)
    assert set(seen["State"]) == {"judged", "job 9 failed"}
    assert r"\*bold\*" in "\n".join(each.value for each in app.subheader)
    assert "secret" not in texts(app)


def test_a_watch_in_the_address_is_shown_however_many_came_after_it(
    watch_id: int, owner: psycopg.Connection, open_page: Open
) -> None:
    for number in range(MOST_WATCHES):
        watches.insert(owner, f"later {number}", "path:/runs/*", {"kinds": [], "rules": RULES[:1]}, None)
    app = open_page(ALERTS, watch=str(watch_id))
    assert r"\*bold\*" in "\n".join(each.value for each in app.subheader)
    assert list(next(each.value for each in app.dataframe if "Alert" in each.value.columns)["Alert"]) == [3, 2, 1]


def test_a_watch_in_the_address_that_is_not_there_is_told(watch_id: int, open_page: Open) -> None:
    assert "There is no watch 99" in texts(open_page(ALERTS, watch="99"))


def test_an_alert_in_the_address_is_shown_in_full(watch_id: int, open_page: Open) -> None:
    told = texts(open_page(ALERTS, alert="2"))
    assert r"entropy\_nats of layer 1 head 2 is 0\.3" in told
    assert r"entropy\_nats head below 0\.5" in told
    assert "There is no alert 99" in texts(open_page(ALERTS, alert="99"))


def test_alerts_are_acknowledged_through_the_api_with_the_scope_of_the_token(
    watch_id: int,
    open_page: Open,
    owner: psycopg.Connection,
    database: MigratedDatabase,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, reading = api_tokens.create(owner, "reader", Scope.READ)
    _, submitting = api_tokens.create(owner, "submitter", Scope.SUBMIT)
    settings = Settings(database_url=database.owner_url, broker_url=None)  # type: ignore[arg-type]  # text for a secret
    with served(settings) as url:
        monkeypatch.setenv("KEYHOLE_API_URL", url)
        app = open_page(ALERTS)
        monkeypatch.setenv("KEYHOLE_API_URL", url)
        button = next(each for each in app.button if each.label == "Acknowledge these 3")
        assert button.disabled
        app.text_input(key="api_token_page").set_value(reading).run()
        next(each for each in app.button if each.label == "Acknowledge these 3").click().run()
        assert "scope submit" in app.error[0].value
        app.text_input(key="api_token_page").set_value(submitting).run()
        next(each for each in app.button if each.label == "Acknowledge these 3").click().run()
    assert owner.execute("SELECT count(*) FROM keyhole.alert WHERE acknowledged_at IS NULL").fetchone() == (0,)
    assert submitting not in str(dict(app.query_params)) + texts(app)


def test_pages_of_alerts_go_to_older_ones_and_back(watch_id: int, open_page: Open, owner: psycopg.Connection) -> None:
    alerts.insert(owner, [new_alert(watch_id, step=1000 + step) for step in range(30)], deliver=False)

    def listed(app) -> list[int]:
        return list(next(each.value for each in app.dataframe if "Alert" in each.value.columns)["Alert"])

    app = open_page(ALERTS)
    newest = listed(app)
    assert len(newest) == 25
    next(each for each in app.button if each.label == "Older").click().run()
    assert listed(app)[0] == newest[-1] - 1
    next(each for each in app.button if each.label == "Newer").click().run()
    assert listed(app) == newest
