"""The pages of the laboratory over runs whose numbers are known, and without any."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.types.json import Jsonb
from streamlit.testing.v1 import AppTest

from dashboard.pages import CHECKPOINTS, NATQ_TRAINING, RESULTS, RUNS, SWEEPS
from db.repositories.runs import Metric
from services.contracts.states import JobState
from tests.conftest import MigratedDatabase
from tests.integration.dashboard import profile_rows, samples, training_rows
from tests.integration.dashboard.opened import APP, Open, texts
from tests.integration.dashboard.training_rows import FINAL, HEADS, LAYERS, MODEL_OF_PAIRS, SEED_EFFECT
from tests.integration.new_runs import stored_checkpoint, trained_run

HOSTILE = "*b* [l](http://x) <script>alert(1)</script> :red[r] $m$"


@pytest.fixture(scope="module")
def owner(module_database: MigratedDatabase) -> Iterator[psycopg.Connection]:
    with module_database.connect() as conn:
        yield conn


@pytest.fixture(scope="module")
def pairs(owner: psycopg.Connection) -> list[int]:
    return training_rows.pairs(owner)


@pytest.fixture
def opened(module_database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch) -> Open:
    monkeypatch.setenv("KEYHOLE_ANALYST_URL", module_database.analyst_url)

    def open_(page: str, **query: str) -> AppTest:
        app = AppTest.from_file(APP, default_timeout=120)
        app.query_params.update(query)
        app.switch_page(page)
        app.run()
        assert not app.exception
        return app

    return open_


def charts(app: AppTest) -> int:
    return len(app.get("plotly_chart"))


def joined(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


@pytest.mark.parametrize(
    ("page", "command"),
    [
        (RUNS, "keyhole submit training --model config:gpt-tiny"),
        (CHECKPOINTS, "keyhole submit training --model config:gpt-tiny"),
        (RESULTS["pattern_stability"], "keyhole submit suite --preset laboratory/figure-4-small"),
        (NATQ_TRAINING, "keyhole submit suite --preset laboratory/figure-6-small"),
        (SWEEPS, "keyhole sweep --model config:gpt-tiny"),
    ],
)
def test_an_empty_page_says_which_command_fills_it(open_page: Open, page: str, command: str) -> None:
    app = open_page(page)
    assert any(command in code.value for code in app.code)


def test_runs_are_listed_with_their_losses_and_filtered(opened: Open, pairs: list[int]) -> None:
    frame = opened(RUNS, model=MODEL_OF_PAIRS).dataframe[0].value
    assert frame["Run"].tolist() == pairs[::-1]
    assert frame["Variant"].tolist() == ["natq", "control"] * 2
    assert frame["Validation"][0] == pytest.approx(FINAL["natq"] + SEED_EFFECT)
    app = opened(RUNS, model=MODEL_OF_PAIRS, variant="natq", seed="0")
    assert app.dataframe[0].value["Run"].tolist() == [pairs[1]]
    app.selectbox(key="variant").set_value("control").run()
    assert app.dataframe[0].value["Run"].tolist() == [pairs[0]]
    app.text_input(key="text").set_value("nothing like it").run()
    assert "No run matches" in texts(app)


def test_one_run_shows_curves_layers_heads_norms_and_settings(opened: Open, pairs: list[int]) -> None:
    app = opened(RUNS, runs=str(pairs[1]))
    assert app.title[0].value == f"Run {pairs[1]}"
    shown = {metric.label: metric.value for metric in app.metric}
    assert (shown["Validation loss"], shown["Bits per byte"]) == ("3.2000", "1.6000")
    assert shown["Tokens per second"] == "20,000"
    assert charts(app) == 5  # two losses, layers, heads, norms
    settings = dict(app.dataframe[-1].value.itertuples(index=False))
    assert (settings["natq.damping"], settings["optimizer.name"], settings["steps"]) == ("0.1", "adamw", "500")
    assert app.select_slider(key="step_choice").value == 500
    app.select_slider(key="step_choice").set_value(250).run()
    assert app.query_params["step"] == "250"
    app.selectbox(key="view_choice").set_value("map").run()
    assert "at step 250" in texts(app) and not app.exception


def test_runs_are_compared_with_what_differs_and_any_number(opened: Open, pairs: list[int]) -> None:
    app = opened(RUNS, runs=joined(pairs), numbers="validation_loss_nats,natq_iterations", start="1", x="tokens")
    table = app.dataframe[0].value
    assert table["Run"].tolist() == pairs
    assert table["Validation"].tolist() == pytest.approx([3.0, 3.2, 3.01, 3.21])
    assert "natq.damping" not in table  # the variant says it
    assert list(app.dataframe[-1].value.columns) == ["Run", "Name", "Variant", "seed"]
    assert "**iterations, mean over layers**" in texts(app)
    app.selectbox(key="show_choice").set_value("seeds").run()
    assert "means over seeds" in texts(app)
    app.selectbox(key="reference_choice").set_value(pairs[0]).run()
    assert app.query_params["reference"] == str(pairs[0])
    assert "difference from the reference" in texts(app) and not app.exception
    assert "There is no iterations" in texts(app)  # the control has no solver


def test_the_job_of_a_run_leads_to_it_and_an_unknown_run_is_named(
    opened: Open, pairs: list[int], owner: psycopg.Connection
) -> None:
    row = owner.execute("SELECT job_id FROM keyhole.run WHERE id = %s", (pairs[2],)).fetchone()
    assert row is not None
    app = opened(RUNS, jobs=str(row[0]))
    assert app.title[0].value == f"Run {pairs[2]}"
    assert app.query_params["runs"] == str(pairs[2]) and "jobs" not in app.query_params
    assert "There is no run 99999" in texts(opened(RUNS, runs="99999"))
    assert any(button.label == "Open the run" for button in opened("views/jobs.py", job=str(row[0])).button)


def test_a_running_run_says_how_far_it_is_and_a_failed_one_why(opened: Open, owner: psycopg.Connection) -> None:
    running = trained_run(
        owner,
        name=HOSTILE,
        state=JobState.RUNNING,
        losses=[(0, 7.0), (100, 5.0)],
        metrics=[Metric(100, "tokens_per_s", 4096.0)],
        steps=200,
    )
    app = opened(RUNS, runs=str(running))
    # 100 steps of 32 x 128 tokens at 4,096 tokens/s
    assert any("100 of 200 steps · 4,096 tokens/s · about 1 min 40 s left" in p.proto.text for p in app.get("progress"))
    assert "<script>" not in "".join(each.value for each in app.markdown) and r"\*b\*" in texts(app)
    owner.execute(
        "UPDATE keyhole.job SET state = 'failed', error_code = 'diverged', error_message = 'Loss is *NaN*' "
        "WHERE id = (SELECT job_id FROM keyhole.run WHERE id = %s)",
        (running,),
    )
    app.run()
    assert r"Loss is \*NaN\*" in app.error[0].value


def test_a_run_without_numbers_and_an_imported_one_are_shown(opened: Open, owner: psycopg.Connection) -> None:
    waiting = trained_run(owner, name="waiting", state=JobState.QUEUED, losses=[])
    row = owner.execute(
        "INSERT INTO keyhole.run (name, origin, source) VALUES ('pythia', 'imported', 'hf:a/b@step*') RETURNING id"
    ).fetchone()
    assert row is not None
    assert "No numbers are stored yet" in texts(opened(RUNS, runs=str(waiting)))
    imported = opened(RUNS, runs=str(row[0]))
    assert "Imported runs have no numbers of their training" in texts(imported)
    assert not imported.get("divider") and not imported.divider
    both = opened(RUNS, runs=f"{waiting},{row[0]}")
    assert both.dataframe[0].value["State"].tolist() == [["queued"], ["imported"]]


def test_numbers_that_are_not_finite_leave_a_gap_and_no_traceback(opened: Open, owner: psycopg.Connection) -> None:
    run = trained_run(
        owner, name="diverged", losses=[(0, 7.0), (250, float("nan")), (500, float("inf"))], state=JobState.FAILED
    )
    app = opened(RUNS, runs=str(run))
    assert charts(app) == 1
    assert {metric.label: metric.value for metric in app.metric}["Best validation loss"] == "7.0000"


@pytest.fixture(scope="module")
def ends(owner: psycopg.Connection, pairs: list[int]) -> list[int]:
    """Last checkpoints of the four runs, after one at step 0 each."""
    for run in pairs:
        stored_checkpoint(owner, run, 0, reasons=["first"], validation_loss_nats=7.0)
    return [
        stored_checkpoint(owner, run, 500, reasons=["last", "best"], validation_loss_nats=3.0 + 0.1 * place)
        for place, run in enumerate(pairs)
    ]


def test_checkpoints_are_listed_filtered_and_opened(
    opened: Open, owner: psycopg.Connection, pairs: list[int], ends: list[int]
) -> None:
    owner.execute(
        "INSERT INTO keyhole.checkpoint_file (checkpoint_id, name, size, sha256) VALUES (%s, 'a', 4200000, '\\x00')",
        (ends[0],),
    )
    app = opened(CHECKPOINTS, run=str(pairs[0]))
    frame = app.dataframe[0].value
    assert frame["Source"].tolist()[0] == f"checkpoint:{ends[0]}"
    assert frame["Size"].tolist() == ["4.20 MB", "–"]
    assert "**2** checkpoints match, 4.20 MB of files" in texts(app)
    assert app.query_params["runs"] == str(pairs[0])
    least = opened(CHECKPOINTS, run=joined(pairs), reason="best", loss="3.05")
    assert least.dataframe[0].value["Run"].tolist() == [pairs[0]]
    assert opened(CHECKPOINTS, run=joined(pairs), **{"from": "1", "to": "499"}).info
    one = opened(CHECKPOINTS, checkpoint=str(ends[1]))
    commands = "\n".join(code.value for code in one.code)
    assert f"checkpoint:{ends[1]}\nrun:{pairs[1]}@500" in commands
    assert f"keyhole checkpoint-export {ends[1]} --to" in commands
    assert "There is no checkpoint 99999" in texts(opened(CHECKPOINTS, checkpoint="99999"))


def test_a_checkpoint_shows_who_measured_it(opened: Open, owner: psycopg.Connection) -> None:
    checkpoint = stored_checkpoint(owner, trained_run(owner, name="measured"), 500, identity="sha256:measured")
    job = samples.insert_job(
        owner,
        "succeeded",
        kind="entropy_bound",
        model_source=f"checkpoint:{checkpoint}",
        model_identity="sha256:measured",
    )
    app = opened(CHECKPOINTS, checkpoint=str(checkpoint))
    assert app.dataframe[0].value["Job"].tolist() == [job]


def test_natq_is_compared_with_the_control_beside_the_noise_of_seeds(
    opened: Open, owner: psycopg.Connection, pairs: list[int], ends: list[int]
) -> None:
    app = opened(NATQ_TRAINING, runs=joined(pairs))
    table = app.dataframe[0].value.set_index("Runs")
    # two seeds 0.01 apart: standard deviation 0.01/√2, pooled the same
    assert table["Final validation loss (nats)"].tolist() == ["3.0050 ± 0.0071", "3.2050 ± 0.0071"]
    assert table["Difference (nats)"]["natq"] == "+0.2000" and table["Verdict"]["natq"] == "differs"
    # t of two degrees of freedom, 4.303, times 0.0071 √(1/2 + 1/2)
    assert table["Counts from (nats)"]["natq"] == "0.0304"
    assert "**natq ends 0.2000 nats higher than control, beyond seed noise**" in texts(app)
    assert charts(app) == 4  # Figure 6, attention by step and by layer, solver
    assert any(f"--model checkpoint:{ends[1]}" in code.value and "--set length=128" in code.value for code in app.code)
    solver = app.dataframe[-1].value
    assert solver["Run"].tolist() == [pairs[1], pairs[3]] and solver["iterations"].tolist() == ["8.0 (most 12.0)"] * 2


def test_a_difference_within_the_noise_is_called_so(opened: Open, owner: psycopg.Connection) -> None:
    runs = [
        trained_run(
            owner,
            name=f"noisy {variant} {seed}",
            losses=[(0, 7.0), (500, 3.0 + 0.2 * seed + (0.01 if variant == "natq" else 0.0))],
            seed=seed,
            variants=[] if variant == "control" else [variant],
        )
        for variant in ("control", "natq")
        for seed in (0, 1)
    ]
    app = opened(NATQ_TRAINING, runs=joined(runs))
    assert "**natq ends 0.0100 nats higher than control, within seed noise**" in texts(app)
    assert app.dataframe[0].value["Verdict"].tolist() == ["reference", "within noise"]
    alone = opened(NATQ_TRAINING, runs=joined([runs[0], runs[2]]))
    assert "nothing tells how much runs differ by chance" in texts(alone)


def test_table_5_is_made_of_profiles_of_the_ends(opened: Open, owner: psycopg.Connection) -> None:
    measured = [training_rows.insert(owner, variant, seed) for seed in (0, 1) for variant in ("control", "natq")]
    means = {}
    for seed, run in enumerate(measured):
        found = profile_rows.columns(seed)
        means[run] = profile_rows.head_means(found, "entropy_nats").mean()
        end = stored_checkpoint(owner, run, 500, reasons=["last"], identity=f"sha256:end of {run}")
        profile_rows.insert(owner, found, model_source=f"checkpoint:{end}", model_identity=f"sha256:end of {run}")
    app = opened(NATQ_TRAINING, runs=joined(measured), local="0.7", entropy="4.5")
    table = next(each.value for each in app.dataframe if "Statistic" in each.value).set_index("Statistic")
    expected = (means[measured[0]] + means[measured[2]]) / 2
    assert float(table["control"]["Mean attention entropy (nats)"].split(" ± ")[0]) == pytest.approx(expected, abs=6e-4)
    assert table["Article: NATQ, 124M"].tolist() == ["4.69", "0.149", "0.209", "1", "48"]
    moved = opened(NATQ_TRAINING, runs=joined(measured), entropy="2")
    table = next(each.value for each in moved.dataframe if "Statistic" in each.value)
    assert table["Article: NATQ, 124M"].tolist()[-1] == "–"  # its count stands at its own threshold only


@pytest.fixture(scope="module")
def sweep(owner: psycopg.Connection, pairs: list[int]) -> tuple[int, list[int]]:
    return training_rows.sweep(owner)


def test_a_sweep_shows_best_settings_noise_verdict_and_members(opened: Open, sweep: tuple[int, list[int]]) -> None:
    number, made = sweep
    assert opened(SWEEPS).dataframe[0].value["Sweep"].tolist() == [number]
    assert "No sweep has that" in texts(opened(SWEEPS, text="else"))
    app = opened(SWEEPS, sweep=str(number))
    best = app.dataframe[0].value.set_index("Variant")
    assert best["optimizer.learning_rate"].tolist() == ["0.001", "0.001"]
    assert best["Final validation loss"].tolist() == pytest.approx([3.005, 3.205])
    assert best["Seeds"].tolist() == ["2 of 2", "2 of 2"]
    assert "**natq ends 0.2000 nats higher than control, beyond seed noise**" in texts(app)
    assert charts(app) == 1
    members = app.dataframe[-1].value
    assert members["Run"].tolist() == made
    assert members["Ended early"].tolist().count("hopeless") == 2
    assert "There is no sweep 999" in texts(opened(SWEEPS, sweep="999"))


def test_the_variants_of_a_sweep_are_compared_at_their_best_settings(
    opened: Open, sweep: tuple[int, list[int]]
) -> None:
    number, _ = sweep
    app = opened(NATQ_TRAINING)  # the newest sweep with natq
    assert app.selectbox(key="sweep_choice").value == number
    assert app.dataframe[0].value["Seeds"].tolist() == ["2 of 2", "2 of 2"]
    assert app.dataframe[0].value["Difference (nats)"].tolist() == ["–", "+0.2000"]
    app.selectbox(key="sweep_choice").set_value(None).run()
    assert app.query_params["sweep"] == "none" and app.multiselect(key="runs_choice").value


def test_runs_lead_to_the_stability_of_their_patterns(
    opened: Open, owner: psycopg.Connection, pairs: list[int], ends: list[int]
) -> None:
    app = opened(RUNS, runs=joined(pairs[:2]))
    links = [link.proto.label for link in app.get("page_link")]
    assert "Checkpoints" in links and "Stability" not in links
    row = owner.execute("SELECT identity FROM keyhole.checkpoint WHERE id = %s", (ends[0],)).fetchone()
    assert row is not None
    parameters = {"run": f"run {pairs[0]}", "step": 500, "checkpoints": []}
    samples.insert_job(
        owner,
        "succeeded",
        kind="pattern_stability",
        model_source=f"checkpoint:{ends[0]}",
        model_identity=row[0],
        parameters=Jsonb(samples.KIND.parameters().model_dump() | parameters),
    )
    links = [link.proto.label for link in opened(RUNS, runs=joined(pairs[:2])).get("page_link")]
    assert "Stability" in links


def test_every_layer_and_head_of_a_run_has_its_number(opened: Open, pairs: list[int]) -> None:
    app = opened(RUNS, runs=str(pairs[0]))
    assert "attention entropy (nats)" in texts(app)
    assert app.selectbox(key="metric_choice").options == ["attention entropy (nats)"]
    assert app.selectbox(key="at_choice").options == [
        "every layer",
        *(f"layer {la} of every run" for la in range(LAYERS)),
    ]
    assert HEADS == 2


def test_a_sweep_of_which_a_job_was_deleted_says_what_it_lacks(
    opened: Open, owner: psycopg.Connection, sweep: tuple[int, list[int]]
) -> None:
    number, made = sweep
    owner.execute("DELETE FROM keyhole.job USING keyhole.run WHERE job.id = job_id AND run.id = %s", (made[0],))
    app = opened(SWEEPS, sweep=str(number))
    members = app.dataframe[-1].value
    assert list(members["State"].iloc[0]) == ["deleted"]
    assert (len(members), members["Run"].isna().sum()) == (len(made), 1)
    assert "1 of 2" in texts(app) and "Fewer finished seeds than other settings" in texts(app)
    assert "Fewer finished seeds than other settings" in texts(opened(NATQ_TRAINING, sweep=str(number)))
