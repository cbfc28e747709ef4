"""Marked text: everything of the corpus is escaped, and only the marked tokens stand out."""

import re

from dashboard.marked_text import LONGEST, Mark, ending, legend, marked_text, visible


def test_text_and_what_a_mark_tells_are_escaped() -> None:
    hostile = "</span><script>alert('1')</script> \" &"
    shown = marked_text([(0, hostile), (1, hostile)], {1: Mark("#112233", hostile)}) + legend(
        [Mark("#112233", hostile)]
    )
    assert set(re.findall(r"</?(\w+)", shown)) == {"div", "span"}
    assert shown.count("&lt;script&gt;") == 5  # two tokens, one title of a token, and the legend with its title
    assert re.findall(r'title="([^"]*)"', shown)[0].endswith("&quot; &amp;")


def test_only_marked_tokens_stand_out_and_text_stays_whole() -> None:
    shown = marked_text(
        [(3, "one "), (4, "two"), (5, "\n")], {4: Mark("#112233", "here"), 5: Mark("#445566", "x", False)}
    )
    assert re.sub(r"<[^>]+>", "", shown) == "one two⏎"
    assert "border-bottom:2px solid #445566" in shown
    assert shown.count("<span") == 2


def test_tokens_without_ink_can_be_seen() -> None:
    assert [visible(text) for text in (" ", "\n", "\t", " a b", "\n x")] == ["␣", "⏎", "⇥", " a b", "⏎ x"]
    assert (visible(None, 7), visible(None)) == ("#7", "")


def test_text_far_from_the_chosen_places_is_left_out() -> None:
    tokens = [(position, f"t{position}.") for position in range(20)]
    shown = re.sub(r"<[^>]+>", "", marked_text(tokens, {}, {3: 1, 18: 2}))
    assert shown == " […] t2.t3.t4. […] t16.t17.t18.t19."
    assert "[…]" not in marked_text(tokens, {})


def test_of_a_long_text_the_ending_is_told() -> None:
    assert ending("a text\nbefore the key", 9) == "… the key"
    assert (ending(" short", 9), ending(None, 9)) == (" short", "")


def test_line_breaks_are_signs_in_an_excerpt_and_breaks_in_the_whole_text() -> None:
    tokens = [(0, "a.\n"), (1, "\n"), (2, "b")]
    assert ">a.\n\nb<" in marked_text(tokens, {})
    assert ">a.⏎ ⏎ b<" in marked_text(tokens, {}, {1: 1})


def test_only_a_whole_text_scrolls_so_that_marks_of_an_excerpt_are_in_view() -> None:
    tokens = [(position, "word ") for position in range(1000)]
    assert "max-height" in marked_text(tokens, {})
    assert "max-height" not in marked_text(tokens, {}, {3: 5, 990: 5})


def test_what_a_browser_would_obey_is_spelled_out() -> None:
    for text in (marked_text([(0, "a\u202eb"), (1, "\x1b\u2066")], {1: Mark("#112233", "x")}), visible("a\u202eb")):
        assert "\u202e" not in text
        assert r"\u202e" in text
    assert visible("a\nb\tc") == "a⏎b⇥c"


def test_a_token_of_thousands_of_letters_or_marks_is_cut() -> None:
    assert len(visible("x" * 3000)) == LONGEST + 1
    assert len(visible("e" + "\u0301" * 80)) == 5
