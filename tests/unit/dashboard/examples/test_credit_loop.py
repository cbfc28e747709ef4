"""Every step of the credit loop against autograd gradient descent on the same model."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dashboard.examples.credit_loop import CreditLoop, Trajectory, play, start

STEPS = 12


def _random(seed: int, *, target: bool) -> CreditLoop:
    rng = np.random.default_rng(seed)
    loop = CreditLoop(
        inputs=rng.normal(size=(4, 5)),
        value_matrix=rng.normal(size=(3, 5)),
        scores=rng.normal(size=4),
        value_rate=0.03,
        score_rate=0.2,
        delta=rng.normal(size=3),
    )
    return replace(loop, delta=None, target=loop.delta) if target else loop


def _by_autograd(loop: CreditLoop) -> Trajectory:
    inputs = torch.tensor(loop.inputs)
    matrix = torch.tensor(loop.value_matrix, requires_grad=True)
    scores = torch.tensor(loop.scores, requires_grad=True)
    record = []
    for _ in range(STEPS + 1):
        attention, values = scores.softmax(0), inputs @ matrix.T
        output = attention @ values
        goal = torch.tensor(loop.delta if loop.target is None else loop.target)
        loss = output @ goal if loop.target is None else (output - goal).square().sum() / 2
        by_output, by_matrix, by_scores = torch.autograd.grad(loss, (output, matrix, scores))
        with torch.no_grad():
            stepped = matrix - loop.value_rate * by_matrix
            before, after = (-(v - attention @ v) @ by_output for v in (inputs @ matrix.T, inputs @ stepped.T))
            step = -loop.score_rate * by_scores
            record.append((scores.clone(), attention, before, after - before, step, loss))
            matrix.copy_(stepped)
            scores.add_(step)
    return Trajectory(*(torch.stack(column).detach().numpy() for column in zip(*record, strict=True)))


@pytest.mark.parametrize("target", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_each_step_is_gradient_descent_by_autograd(seed: int, target: bool) -> None:
    loop = _random(seed, target=target)
    found, expected = play(loop, STEPS), _by_autograd(loop)
    for name, values in vars(expected).items():
        np.testing.assert_allclose(getattr(found, name), values, rtol=1e-9, atol=1e-12, err_msg=name)


def test_log_odds_are_those_of_the_weights() -> None:
    found = play(_random(0, target=False), STEPS)
    a = found.attention
    np.testing.assert_allclose(found.log_odds(0, 2), np.log(a[:, 0] / a[:, 2]), rtol=1e-9)
    np.testing.assert_allclose(found.log_odds_to_rest(1), np.log(a[:, 1] / (1 - a[:, 1])), rtol=1e-9)


def test_a_start_has_the_asked_similarity_scores_and_values() -> None:
    loop = start(np.array([0.5, 0, -1]), np.array([0, 0.25, 2]), similarity=0.3)
    gram = loop.inputs @ loop.inputs.T
    np.testing.assert_allclose(gram, [[1, 0.3, 0.3], [0.3, 1, 0.3], [0.3, 0.3, 1]], atol=1e-12)
    first = play(loop, 0)
    values = np.array([0, 0.25, 2])
    np.testing.assert_allclose(first.advantage[0], values - first.attention[0] @ values, atol=1e-12)


def test_orthogonal_inputs_gain_by_the_articles_difference_of_weights() -> None:
    first = play(start(np.array([1.0, 0, 0, 0]), np.zeros(4), value_rate=0.7), 0)
    weights = first.attention[0]
    np.testing.assert_allclose(first.predicted_gain[0], 0.7 * (weights - weights @ weights), rtol=1e-12)


def test_a_small_first_gap_runs_away_and_a_target_stops_it() -> None:
    gaps, none = np.array([0.1, 0, 0]), np.zeros(3)
    away = play(start(gaps, none, value_rate=0.5, score_rate=0.5), 60)
    assert away.attention[-1, 0] > 0.99 > 0.5 > away.attention[0, 0]
    assert (np.diff(away.log_odds(0, 1)) > 0)[1:].all()  # the first step finds equal values: no advantage yet
    held = play(start(gaps, none, value_rate=0.5, score_rate=0.5, target=0.5), 60)
    assert held.loss[-1] < 1e-6
    assert held.attention[-1, 0] < 0.5


@pytest.mark.parametrize("similarity", [1.0, -0.6])
def test_impossible_similarities_are_refused(similarity: float) -> None:
    with pytest.raises(ValueError, match="cosine"):
        start(np.zeros(3), np.zeros(3), similarity=similarity)


@pytest.mark.parametrize("both", [True, False])
def test_a_loop_has_either_a_delta_or_a_target(both: bool) -> None:
    goal = np.ones(1) if both else None
    with pytest.raises(ValueError, match="either"):
        CreditLoop(np.eye(2), np.zeros((1, 2)), np.zeros(2), delta=goal, target=goal)
