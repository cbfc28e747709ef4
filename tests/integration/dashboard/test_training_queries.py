"""Numbers of runs as the pages read them, against NumPy over the same rows."""

import re
import statistics
from collections.abc import Iterator

import numpy as np
import psycopg
import pytest

from dashboard.queries import checkpoints, run_jobs, runs, sweeps, training_matrices
from dashboard.queries import training_metrics as queries
from dashboard.queries.training_metrics import Asked
from db.repositories.runs import Metric
from db.repositories.runs import write as write_numbers
from services.contracts.states import JobState
from tests.conftest import MigratedDatabase
from tests.integration.dashboard import samples, training_rows
from tests.integration.dashboard.training_rows import FINAL, HEADS, LAYERS, MODEL_OF_PAIRS, SEED_EFFECT, STEPS, entropy
from tests.integration.new_runs import stored_checkpoint, trained_run


@pytest.fixture(scope="module")
def owner(module_database: MigratedDatabase) -> Iterator[psycopg.Connection]:
    with module_database.connect() as conn:
        yield conn


@pytest.fixture(scope="module")
def analyst(module_database: MigratedDatabase) -> Iterator[psycopg.Connection]:
    with module_database.connect_analyst() as conn:
        yield conn


@pytest.fixture(scope="module")
def pairs(owner: psycopg.Connection) -> list[int]:
    return training_rows.pairs(owner)


def test_metrics_are_named_with_the_levels_that_have_rows(analyst: psycopg.Connection, pairs: list[int]) -> None:
    found = {metric.name: metric for metric in queries.metrics(analyst, pairs)}
    assert (found["entropy_nats"].of_model, found["entropy_nats"].of_layers, found["entropy_nats"].of_heads) == (
        True,
        True,
        True,
    )
    assert (found["loss_nats"].of_model, found["loss_nats"].of_layers) == (True, False)
    assert (found["natq_iterations"].of_model, found["natq_iterations"].of_layers) == (False, True)
    assert "natq_iterations" not in {metric.name for metric in queries.metrics(analyst, pairs[:1])}


def test_curves_have_every_point_where_a_chart_can_draw_them(analyst: psycopg.Connection, pairs: list[int]) -> None:
    found = queries.curves(analyst, Asked(pairs, "validation_loss_nats"))
    assert [(p.run_id, p.step) for p in found] == [(run, step) for run in pairs for step in STEPS]
    assert [p.value for p in found if p.run_id == pairs[0]] == [7.0, FINAL["control"] + 0.5, FINAL["control"]]
    assert {p.step for p in queries.curves(analyst, Asked(pairs, "validation_loss_nats", start=1))} == {250, 500}


def test_long_curves_are_thinned_to_what_a_chart_draws_and_keep_every_spike(
    owner: psycopg.Connection, analyst: psycopg.Connection
) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=20_000)
    values[[137, 9_999, 19_000]] = 50.0, -40.0, 60.0
    run = trained_run(owner, name="long", losses=[(20_000, 1.0)])
    write_numbers(owner, run, [Metric(step + 1, "gradient_norm", float(v)) for step, v in enumerate(values)])
    found = queries.curves(analyst, Asked([run], "gradient_norm"))
    assert len(found) <= queries.MOST_POINTS
    shown = {p.step - 1: p.value for p in found}
    assert all(shown[step] == values[step] for step in shown)
    # of every stretch of 20,000 / 2,500 rows its lowest and highest stand
    stretches = values.reshape(2500, -1)
    lowest = stretches.argmin(1) + np.arange(2500) * stretches.shape[1]
    highest = stretches.argmax(1) + np.arange(2500) * stretches.shape[1]
    assert set(shown) == {int(step) for step in (*lowest, *highest)}


def test_a_difference_is_taken_at_the_same_steps(analyst: psycopg.Connection, pairs: list[int]) -> None:
    control, natq = pairs[:2]
    found = queries.curves(analyst, Asked([control, natq], "validation_loss_nats", reference=[control]))
    assert {p.value for p in found if p.run_id == control} == {0.0}
    last = next(p.value for p in found if (p.run_id, p.step) == (natq, 500))
    assert last == pytest.approx(FINAL["natq"] - FINAL["control"])
    only = queries.curves(analyst, Asked([natq], "validation_loss_nats", reference=[control]))
    assert {p.run_id for p in only} == {natq}


def test_means_over_seeds_are_those_of_the_runs_of_a_group(analyst: psycopg.Connection, pairs: list[int]) -> None:
    groups = [[pairs[0], pairs[2]], [pairs[1], pairs[3]]]
    found = queries.group_curves(analyst, Asked(pairs, "validation_loss_nats"), groups)
    assert [(p.number, p.step, p.runs) for p in found] == [(n, step, 2) for n in (0, 1) for step in STEPS]
    end = [FINAL["natq"], FINAL["natq"] + SEED_EFFECT]
    last = found[-1]
    assert (last.mean, last.low, last.high) == pytest.approx((statistics.fmean(end), *end))
    assert last.sd == pytest.approx(statistics.stdev(end))
    less = queries.group_curves(analyst, Asked(pairs, "validation_loss_nats", reference=groups[0]), groups)
    assert less[-1].mean == pytest.approx(FINAL["natq"] - FINAL["control"])


def test_layers_are_read_one_by_one_as_their_mean_and_as_a_map(analyst: psycopg.Connection, pairs: list[int]) -> None:
    natq = pairs[1]
    layer = [float(np.mean([entropy("natq", 0, 500, 2, head) for head in range(HEADS)]))]
    one = queries.curves(analyst, Asked([natq], "entropy_nats", 2, 500))
    assert [p.value for p in one] == pytest.approx(layer)
    mean = queries.curves(analyst, Asked([natq], "natq_iterations", "layers"))
    assert [p.value for p in mean] == pytest.approx([4.0 * 2] * 2)  # layers have 4, 8 and 12
    cells = queries.layer_map(analyst, queries.layer_map_values(natq, "entropy_nats", 0, LAYERS))
    assert [(c.step, c.layer) for c in cells] == [(step, la) for step in STEPS for la in range(LAYERS)]
    assert cells[-1].value == pytest.approx(layer[0])
    few = queries.layer_map(analyst, queries.layer_map_values(natq, "entropy_nats", 0, LAYERS) | {"columns": 1})
    means = [np.mean([c.value for c in cells if c.layer == la]) for la in range(LAYERS)]
    assert [c.value for c in few] == pytest.approx(means)
    assert {c.step for c in few} == {500}


def test_heads_are_those_of_the_step(analyst: psycopg.Connection, pairs: list[int]) -> None:
    assert queries.head_steps(analyst, pairs[0], "entropy_nats") == list(STEPS)
    found = queries.heads(analyst, [pairs[0]], "entropy_nats", 250)
    expected = [entropy("control", 0, 250, la, h) for la in range(LAYERS) for h in range(HEADS)]
    assert [each.value for each in found] == pytest.approx(expected)


def test_layers_of_groups_are_means_over_their_seeds(analyst: psycopg.Connection, pairs: list[int]) -> None:
    groups = [[pairs[0], pairs[2]], [pairs[1], pairs[3]]]
    assert queries.layer_steps(analyst, pairs, "entropy_nats") == list(STEPS)
    found = queries.group_layers(analyst, queries.group_layers_values(groups, "entropy_nats", 500))
    assert [(row.number, row.layer) for row in found] == [(n, la) for n in (0, 1) for la in range(LAYERS)]
    seeds = [np.mean([entropy("natq", seed, 500, 0, h) for h in range(HEADS)]) for seed in (0, 1)]
    assert found[LAYERS].mean == pytest.approx(np.mean(seeds))
    assert found[LAYERS].sd == pytest.approx(statistics.stdev(map(float, seeds)))
    solver = queries.over_steps(analyst, pairs, ["natq_iterations"])
    assert [(row.run_id, row.rows, row.mean, row.largest) for row in solver] == [
        (run, 2 * LAYERS, 8.0, 12.0) for run in (pairs[1], pairs[3])
    ]


def test_norms_of_matrices_are_read_by_layer_and_as_ratios(analyst: psycopg.Connection, pairs: list[int]) -> None:
    run = pairs[0]
    assert training_matrices.names(analyst, [run]) == ["q", "wte"]
    assert training_matrices.layers(analyst, [run], "q") == list(range(LAYERS))
    assert training_matrices.layers(analyst, [run], "wte") == []
    statement, values = training_matrices.curves_sql([run], "q", "ratio", layer=1, series=1)
    found = training_matrices.curves(analyst, statement, values)
    assert [(p.step, p.value) for p in found] == [(250, pytest.approx(0.02 / 2.25)), (500, pytest.approx(0.02 / 2.5))]
    statement, values = training_matrices.curves_sql([run], "q", "weight", layer=None, series=LAYERS)
    assert len(training_matrices.curves(analyst, statement, values)) == LAYERS * len(STEPS)


def test_runs_are_filtered_and_paged_by_number(analyst: psycopg.Connection, pairs: list[int]) -> None:
    natq = runs.run_page(analyst, runs.Filters(variant="natq", model=MODEL_OF_PAIRS))
    assert [line.run_id for line in natq.lines] == [pairs[3], pairs[1]]
    assert natq.lines[0].last_validation_loss_nats == pytest.approx(FINAL["natq"] + SEED_EFFECT)
    control = runs.run_page(analyst, runs.Filters(text="CONTROL 1", model=MODEL_OF_PAIRS))
    assert [line.run_id for line in control.lines] == [pairs[2]]
    assert [line.run_id for line in runs.run_page(analyst, runs.Filters(text=f"#{pairs[1]}")).lines] == [pairs[1]]
    assert {line.seed for line in runs.run_page(analyst, runs.Filters(seed=1)).lines} == {1}
    assert runs.run_page(analyst, runs.Filters(text="100%")).lines == []
    first = runs.run_page(analyst, runs.Filters(model=MODEL_OF_PAIRS), before=pairs[3], limit=2)
    assert [line.run_id for line in first.lines] == [pairs[2], pairs[1]]
    assert first.older and first.newer
    back = runs.run_page(analyst, runs.Filters(model=MODEL_OF_PAIRS), after=pairs[0], limit=2)
    assert [line.run_id for line in back.lines] == [pairs[2], pairs[1]]


def test_chosen_runs_come_with_parameters_and_speed(analyst: psycopg.Connection, pairs: list[int]) -> None:
    found = runs.runs(analyst, [pairs[1], 10**8])
    assert [run.run_id for run in found] == [pairs[1]]
    assert found[0].tokens_per_s == 20_000
    assert found[0].tokens_per_step == 32 * 128
    assert found[0].parameters is not None and found[0].parameters["variants"][0]["name"] == "natq"
    jobs = [run.job_id for run in found if run.job_id is not None]
    assert runs.of_jobs(analyst, jobs) == [pairs[1]]


def test_a_thousand_runs_are_listed_from_an_index_and_not_from_their_numbers(
    owner: psycopg.Connection, analyst: psycopg.Connection
) -> None:
    owner.execute(
        "INSERT INTO keyhole.run (name, origin, source) SELECT 'many ' || i, 'imported', 'path:x' "
        "FROM generate_series(1, 1000) AS i"
    )
    try:
        owner.execute("ANALYZE keyhole.run")
        query = runs._RUN_PAGE.format(line=runs._LINE, direction="DESC")
        names = ("variant", "state", "model", "seed", "suite", "before", "after")
        values = dict.fromkeys(names) | {"text": "", "pattern": "%%", "limit": 26}
        plan = "\n".join(row[0] for row in analyst.execute(f"EXPLAIN (ANALYZE, TIMING OFF) {query}".encode(), values))
        looked_up = [int(loops) for loops in re.findall(r"loops=(\d+)", plan)]
        assert max(looked_up) <= 26, plan
    finally:
        owner.execute("DELETE FROM keyhole.run WHERE source = 'path:x'")


def test_checkpoints_are_filtered_summed_and_paged(owner: psycopg.Connection, analyst: psycopg.Connection) -> None:
    run = trained_run(owner, name="with checkpoints")
    numbers = [
        stored_checkpoint(owner, run, step, reasons=reasons, validation_loss_nats=loss)
        for step, reasons, loss in ((0, ["first"], 7.0), (250, ["interval"], 4.0), (500, ["best", "last"], 3.5))
    ]
    for number, size in zip(numbers, (100, 200, 300), strict=True):
        owner.execute(
            "INSERT INTO keyhole.checkpoint_file (checkpoint_id, name, size, sha256) VALUES (%s, 'model', %s, '\\x00')",
            (number, size),
        )
    of_run = checkpoints.Filters(runs=[run])
    page = checkpoints.checkpoint_page(analyst, of_run, limit=2)
    assert [line.checkpoint_id for line in page.lines] == numbers[:0:-1]
    assert page.older and not page.newer
    assert checkpoints.sizes(analyst, of_run) == checkpoints.Sizes(3, 600)

    def steps(**filters: object) -> list[int]:
        asked = checkpoints.Filters(runs=[run], **filters)  # type: ignore[arg-type]  # fields by name
        return [line.step for line in checkpoints.checkpoint_page(analyst, asked).lines]

    assert steps(reason="best") == [500]
    assert steps(least_step=1, largest_step=499) == [250]
    assert steps(largest_loss_nats=4.0) == [500, 250]
    assert steps(resumable=True) == []
    found = checkpoints.checkpoint(analyst, numbers[2])
    assert found is not None and (found.bytes, found.step) == (300, 500)
    assert checkpoints.checkpoint(analyst, 10**8) is None


def test_jobs_are_found_by_the_identity_of_what_they_measured(
    owner: psycopg.Connection, analyst: psycopg.Connection
) -> None:
    run = trained_run(owner, name="measured")
    first, last = (stored_checkpoint(owner, run, step) for step in (0, 500))
    profile = samples.insert_job(
        owner,
        "succeeded",
        kind="attention_profile",
        model_source=f"checkpoint:{last}",
        model_identity=f"sha256:{run}-500",
    )
    stability = samples.insert_job(
        owner, "succeeded", kind="pattern_stability", model_source="checkpoint:1", model_identity=f"sha256:{run}-0"
    )
    owner.execute("INSERT INTO keyhole.job_model VALUES (%s, 0, %s, %s)", (stability, "x", f"sha256:{run}-500"))
    assert [job.job_id for job in run_jobs.of_checkpoint(analyst, last)] == [stability, profile]
    assert [job.job_id for job in run_jobs.of_checkpoint(analyst, first)] == [stability]
    assert run_jobs.of_kind(analyst, [run], "pattern_stability") == [stability]
    ends = run_jobs.at_the_end(analyst, [run], "attention_profile")
    assert [(end.checkpoint_id, end.step, end.job_id) for end in ends] == [(last, 500, profile)]
    assert run_jobs.at_the_end(analyst, [run], "ratchet")[0].job_id is None


def test_sweeps_are_listed_with_their_members(owner: psycopg.Connection, analyst: psycopg.Connection) -> None:
    number, made = training_rows.sweep(owner, name="of learning rates")
    line = sweeps.sweep(analyst, number)
    assert line is not None
    assert (line.members, line.succeeded, line.cancelled, line.ended) == (16, 14, 2, True)
    assert (line.variants, line.seeds) == (["control", "natq"], 2)
    assert line.lowest_nats == pytest.approx(training_rows.sweep_loss("control", 0.001, 0.0, 0))
    assert [member.run_id for member in sweeps.members(analyst, number)] == made
    assert [each.sweep_id for each in sweeps.sweeps(analyst, "OF LEARNING")] == [number]
    assert sweeps.sweeps(analyst, "no such") == []
    assert sweeps.sweep(analyst, 10**8) is None


def test_runs_of_a_suite_are_found_by_it(owner: psycopg.Connection, analyst: psycopg.Connection) -> None:
    number, made = training_rows.sweep(owner)
    line = sweeps.sweep(analyst, number)
    assert line is not None
    of_suite = runs.run_page(analyst, runs.Filters(suite=line.suite_id, state=JobState.CANCELLED))
    assert len(of_suite.lines) == 2
    assert {each.run_id for each in of_suite.lines} <= set(made)
    assert line.suite_id in runs.options(analyst).suites
