"""Which text of a query's sequence the buried-keys page shows."""

from dashboard.views.buried_keys_example import NEAR_KEY, NEAR_PICK, PICKS_TEXT, text_shown


def test_query_and_best_key_have_the_most_text_around_them() -> None:
    shown = text_shown(900, [50, 400], [50, 7, 900])
    assert shown == {900: NEAR_KEY, 50: NEAR_KEY, 400: NEAR_PICK, 7: NEAR_PICK}


def test_many_picks_share_a_bounded_text() -> None:
    shown = text_shown(4000, [10], range(100, 1700, 50))
    picks = [reach for place, reach in shown.items() if place not in (10, 4000)]
    assert len(picks) == 32 and min(picks) >= 1
    assert sum(2 * reach for reach in picks) <= PICKS_TEXT


def test_an_abstaining_query_without_stored_picks_is_shown_alone() -> None:
    assert text_shown(12, [], []) == {12: NEAR_KEY}
