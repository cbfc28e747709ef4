"""How numbers, times and user text are shown."""

import math

import pytest

from dashboard import formats


@pytest.mark.parametrize(
    ("log10", "shown"),
    [
        (0.0, "1.0"),
        (math.log10(4.63), "4.6"),
        (math.log10(99.94), "99.9"),
        (math.log10(312.4), "312"),
        (math.log10(12_345.0), "12,300"),
        (math.log10(3.14e7), "3.1 × 10⁷"),
        (math.log10(9.99e7), "1.0 × 10⁸"),
        (-1.0, "0.1"),
        (-4.0, "1.0 × 10⁻⁴"),
        (math.inf, "∞"),
        (math.nan, "–"),
        (None, "–"),
    ],
)
def test_a_log10_value_reads_as_the_number_itself(log10: float | None, shown: str) -> None:
    assert formats.power_of_ten(log10) == shown


def test_a_share_is_never_rounded_to_all_or_none() -> None:
    assert [formats.percent(share) for share in (0.0, 0.0004, 0.5, 0.9996, 1.0, None)] == [
        "0.0 %",
        "< 0.1 %",
        "50.0 %",
        "> 99.9 %",
        "100.0 %",
        "–",
    ]


def test_durations_have_at_most_two_units() -> None:
    assert [formats.duration(s) for s in (0, 2.04, 59.7, 61, 3600, 7_380, 183_600)] == [
        "0 s",
        "2 s",
        "1 min",
        "1 min 1 s",
        "1 h",
        "2 h 3 min",
        "2 d 3 h",
    ]


def test_long_text_keeps_both_ends() -> None:
    text = "hf:ORG/" + "x" * 100 + "@abcdef"
    assert formats.shortened(text, 21) == "hf:ORG/xxx…xxx@abcdef"
    assert formats.shortened("short", 21) == "short"


def test_texts_are_cut_where_they_stay_different() -> None:
    long = "x" * 40
    for texts in ([f"path:/{long}/a", f"path:/{long}/b"], [f"hf:a/{long}?split=train", f"hf:b/{long}?split=train"]):
        shown = formats.told_apart(texts, 20)
        assert len(set(shown.values())) == 2
        assert all(len(text) <= 20 for text in shown.values())


def test_texts_that_fit_stay_whole_and_hashes_of_revisions_get_seven_digits() -> None:
    revision = "060db6499f32faf8b98477b0a26969ef7d8b9987"
    shown = formats.told_apart(["builtin:a", f"hf:o/m@{revision}"], 20)
    assert shown == {"builtin:a": "builtin:a", f"hf:o/m@{revision}": "hf:o/m@060db64"}


def test_markdown_in_user_text_is_escaped_and_code_in_our_hints_is_kept() -> None:
    hostile = "*a* [b](http://c) <img src=x> :red[d] $e$ # f"
    escaped = formats.markdown_text(hostile)
    for sign in "*[]()<>:$#":
        assert escaped.count(sign) == escaped.count("\\" + sign)
    assert formats.markdown_words("Run `keyhole up` *now*") == r"Run `keyhole up` \*now\*"


def test_bytes_come_with_three_digits_and_the_unit_that_fits() -> None:
    sizes = (0, 999, 4_210, 17_000_000, 240_000_000, 1_630_000_000, 10**12)
    assert [formats.byte_size(size) for size in sizes] == [
        "0 B",
        "999 B",
        "4.21 kB",
        "17.0 MB",
        "240 MB",
        "1.63 GB",
        "1.00 TB",
    ]


def test_a_difference_that_rounds_to_nothing_has_no_sign() -> None:
    assert [formats.signed_decimals(value, 4) for value in (-1e-9, 1e-9, 0.0, -0.01, 0.01)] == [
        "0.0000", "0.0000", "0.0000", "-0.0100", "+0.0100",
    ]  # fmt: skip
