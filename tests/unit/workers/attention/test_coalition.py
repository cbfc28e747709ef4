"""Picks, ranks and agreement against NumPy, SciPy and counting, with many ties."""

from collections import defaultdict
from statistics import median

import numpy as np
import pytest
import torch
from scipy.stats import rankdata

from workers.attention import coalition
from workers.attention.coalition import Picks


@pytest.mark.parametrize("width", [1, 3, 5, 6, 40])
@pytest.mark.parametrize("values", [2, 5, 10_000])
def test_of_equal_entries_the_first_are_picked(width: int, values: int) -> None:
    magnitudes = torch.randint(1, values, (7, 3, width), generator=torch.Generator().manual_seed(width)).float()
    found, places = coalition.largest_entries(magnitudes, 5)
    order = np.argsort(-magnitudes.numpy(), axis=-1, kind="stable")[..., :5]
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(found, np.take_along_axis(magnitudes.numpy(), order, axis=-1))


def test_ranks_count_what_is_attended_to_more() -> None:
    scores = torch.randint(0, 9, (4, 30), generator=torch.Generator().manual_seed(0)).double()
    keys = torch.arange(30).expand(4, 30)
    found = coalition.attention_ranks(scores, keys, torch.empty_like(scores))
    np.testing.assert_array_equal(found, rankdata(-scores.numpy(), method="min", axis=-1))


@pytest.mark.parametrize(("heads", "top_k", "min_heads"), [(1, 1, 1), (4, 3, 2), (9, 5, 4), (12, 5, 4)])
def test_coalitions_are_those_that_counting_finds(heads: int, top_k: int, min_heads: int) -> None:
    random = np.random.default_rng(heads)
    rows, width = 40, 7  # few keys: often both signs of a key qualify
    keys = np.array([[random.permutation(width)[:top_k] for _ in range(heads)] for _ in range(rows)])
    advantages = random.normal(size=keys.shape) * (random.random(keys.shape) > 0.1)
    weights, ranks = random.random(keys.shape), random.integers(1, 600, keys.shape)
    found = coalition.agree(Picks(*map(torch.as_tensor, (keys, advantages, weights, ranks))), min_heads)

    of_pick, index, both = found.of_pick.numpy(), 0, 0
    for row in range(rows):
        members = defaultdict(list)
        for pick in np.argwhere(advantages[row] != 0):
            pick = tuple(pick)
            members[keys[row][pick], np.sign(advantages[row][pick])].append(pick)
        assert found.most_heads[row] == max(map(len, members.values()), default=0)
        qualified = {choice: group for choice, group in members.items() if len(group) >= min_heads}
        both += len(qualified) - len({key for key, _ in qualified})
        scores = {choice: sum(abs(advantages[row][pick]) for pick in group) for choice, group in qualified.items()}
        of_row = np.full(keys.shape[1:], -1)
        for place, choice in enumerate(sorted(qualified, key=lambda choice: -scores[choice]), start=1):
            group = qualified[choice]
            mine = sorted(ranks[row][pick] for pick in group)
            assert (found.row[index], found.key[index], found.direction[index]) == (row, *choice)
            assert (found.heads[index], found.place[index]) == (len(group), place)
            assert (found.smallest_rank[index], found.largest_rank[index]) == (mine[0], mine[-1])
            assert found.median_rank[index] == median(mine)
            assert found.largest_weight[index] == max(weights[row][pick] for pick in group)
            assert float(found.score[index]) == pytest.approx(scores[choice])
            for pick in group:
                of_row[pick] = index
            index += 1
        np.testing.assert_array_equal(of_pick[row], of_row)
    assert index == len(found.row) > 0
    assert both > 0 or heads < 2 * min_heads


def test_a_row_without_picks_has_no_coalition() -> None:
    nothing = torch.zeros(2, 4, 3)
    found = coalition.agree(Picks(nothing.long(), nothing, nothing, nothing.long() + 1), 1)
    assert len(found.row) == 0
    assert found.most_heads.tolist() == [0, 0]
    assert bool((found.of_pick == -1).all())
