"""Rules of watches: their text form reads back, and what is wrong with one is told with what would be right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from services.contracts.kinds import KINDS
from services.contracts.rule_texts import GRAMMAR, parse, written
from services.contracts.rules import (
    TRAINING,
    AnyRule,
    EntropyMarginRule,
    LossJumpRule,
    MetricRule,
    Rule,
    SigmaRule,
    levels_of,
    metrics_of,
    settled,
)

ADAPTER: TypeAdapter[AnyRule] = TypeAdapter(Rule)


def read(text: str) -> AnyRule:
    return ADAPTER.validate_python(parse(text))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("entropy_nats head below 0.5", MetricRule(metric="entropy_nats", level="head", below=0.5)),
        ("entropy_nats below .5", MetricRule(metric="entropy_nats", below=0.5)),
        (
            "attention_profile.top_weight layer q95 above 0.9",
            MetricRule(metric="top_weight", of="attention_profile", level="layer", statistic="q95", above=0.9),
        ),
        (
            "training.entropy_nats model Below 1e-1 recovering 50%",
            MetricRule(metric="entropy_nats", of="training", level="model", below=0.1, recovery=0.5),
        ),
        ("gap_min min head below -1", MetricRule(metric="gap_min", level="head", statistic="minimum", below=-1.0)),
        ("loss jump 0.5", LossJumpRule(above=0.5)),
        ("training loss jump 2nats over minimum", LossJumpRule(above=2, over="minimum")),
        ("validation loss jump 10%", LossJumpRule(loss="validation", above=10, unit="percent")),
        ("loss jump 1 nat over median of 50", LossJumpRule(above=1, over="median", window=50)),
        ("sigma above 30", SigmaRule(above=30)),
        ("sigma of updates matrix mlp.c_fc above 3", SigmaRule(of="updates", matrix="mlp.c_fc", above=3)),
        ("sigma of product above 1e4", SigmaRule(of="product", above=1e4)),
        ("entropy within 0.1 nats of bound", EntropyMarginRule(within_nats=0.1)),
        (
            "entropy within 0.1 of its bound layer minimum",
            EntropyMarginRule(within_nats=0.1, level="layer", statistic="minimum"),
        ),
    ],
)
def test_a_text_reads_as_its_rule_and_the_rule_writes_a_text_that_reads_the_same(text: str, rule: AnyRule):
    assert read(text) == rule
    assert read(written(rule)) == rule


_PLACES = [(of, metric, level) for of in KINDS for metric in metrics_of(of) for level in levels_of(of, metric)]
_FINITE = st.floats(allow_nan=False, allow_infinity=False).map(lambda number: float(f"{number:.12g}"))


@given(st.sampled_from(_PLACES), _FINITE, st.booleans(), st.integers(0, 100))
def test_every_metric_at_every_level_can_be_written_and_read(place, limit, below, percent):
    of, metric, level = place
    side = {"below" if below else "above": limit}
    rule = MetricRule(metric=metric, of=of, level=level, recovery=percent / 100, **side)
    assert read(written(rule)) == rule


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the name of a metric"),
        ("entropy_nats", "below or above"),
        ("entropy_nats below", "a number"),
        ("entropy_nats below low", "'low' is no number"),
        ("entropy_nats below 0.5 please", "'please' is too much"),
        ("entropy_nats heads below 0.5", "below or above is missing before 'heads'"),
        ("loss jump", "a number"),
        ("loss jump 1 over mean", "minimum or median is missing before 'mean'"),
        ("loss jump 1 over median of 2.5", "whole number"),
        ("loss jump 1 over median of inf", "'inf' is no finite number"),
        ("loss jump 1 over median of nan", "'nan' is no finite number"),
        ("sigma of queries above 3", "weights, updates, scores or product is missing before 'queries'"),
        ("entropy within 3 of limit", "bound is missing before 'limit'"),
        ("entropy_nats below 0.5 recovering 10", "it ends before %"),
        ("loss jump nan", "'nan' is no finite number"),
        ("entropy_nats below inf", "'inf' is no finite number"),
    ],
)
def test_a_text_that_is_no_rule_is_told_the_grammar(text: str, told: str):
    with pytest.raises(ValueError, match="is no rule") as error:
        parse(text)
    assert told in str(error.value)
    assert GRAMMAR in str(error.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("entropi_nats below 1", "did you mean entropy_nats"),
        ("entropi_nats below 1", "attention_profile: entropy_nats, top_weight"),
        ("ratchet.entropy_nats below 1", "entropy_nats is of attention_profile, training"),
        ("ratchet.entropy_nats below 1", "ratchet: gain_top"),
        ("loss_nats head above 1", "not known by head, only by model"),
        ("training.entropy_nats median below 1", "no median"),
        ("sigma of scores matrix q above 1", "has no matrix"),
        ("sigma above 0", "greater than 0"),
        ("entropy_nats below 1 recovering 101%", "less than or equal to 1"),
    ],
)
def test_a_rule_about_what_there_is_not_is_told_what_there_is(text: str, told: str):
    with pytest.raises(ValidationError) as error:
        read(text)
    assert told in str(error.value)


def test_a_window_is_written_only_where_a_median_is_taken():
    least = LossJumpRule(loss="validation", above=1, window=50)
    assert written(least) == "validation loss jump 1 nats"
    assert written(LossJumpRule(above=1, over="minimum", window=50)) == "training loss jump 1 nats over minimum"
    assert written(LossJumpRule(above=1, window=50)) == "training loss jump 1 nats over median of 50"


def test_a_rule_needs_one_side():
    for sides in ({}, {"below": 1.0, "above": 2.0}):
        with pytest.raises(ValidationError, match="either below or above"):
            ADAPTER.validate_python({"type": "metric", "metric": "entropy_nats", **sides})


def test_an_open_rule_is_about_the_watchs_probe_and_else_about_the_training():
    rule = MetricRule(metric="entropy_nats", below=0.5)
    probe = settled(rule, ["ratchet", "attention_profile"], of_runs=True)
    assert (probe.of, probe.level, probe.statistic) == ("attention_profile", "head", "mean")
    training = settled(rule, ["ratchet"], of_runs=True)
    assert (training.of, training.level, training.statistic) == (TRAINING, "head", None)
    with pytest.raises(ValueError, match=r"measures 'entropy_nats'; entropy_nats is of attention_profile, training"):
        settled(rule, ["ratchet"], of_runs=False)


def test_a_level_or_statistic_that_only_one_origin_has_decides_for_it():
    quantile = settled(MetricRule(metric="entropy_nats", statistic="q05", below=1), ["attention_profile"], of_runs=True)
    assert quantile.of == "attention_profile"
    with pytest.raises(ValueError, match="'entropy_nats q05'"):
        settled(MetricRule(metric="entropy_nats", statistic="q05", below=1), [], of_runs=True)
    loss = settled(MetricRule(metric="loss_nats", above=9), ["attention_profile"], of_runs=True)
    assert (loss.of, loss.level) == (TRAINING, "model")


def test_a_nul_character_is_refused_with_the_text():
    with pytest.raises(ValueError, match=r"'sigma of weights matrix q\\x00 above 3' is no rule: it has a NUL"):
        parse("sigma of weights matrix q\0 above 3")
    with pytest.raises(ValidationError, match="matrix"):
        SigmaRule(matrix="q\0", above=3)
