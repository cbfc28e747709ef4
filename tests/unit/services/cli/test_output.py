"""Text output of the command."""

import io
import json
import re
import unicodedata
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel

from services.cli import output
from services.contracts.printable import NAME_PATTERN, visible

# What a terminal obeys, told independently: the Unicode classes of controls and of bidirectional embedding.
OBEYED = [
    chr(code)
    for code in range(0x10000)
    if unicodedata.category(chr(code)) in ("Cc", "Zl", "Zp")
    or unicodedata.bidirectional(chr(code)) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
]
HOSTILE = "before" + "".join(OBEYED) + "\udcff after"


class Told(BaseModel):
    text: str


def obeyed(text: str, but: str = "\n") -> set[str]:
    return {character for character in text if character in OBEYED} - set(but)


def test_a_table_aligns_numbers_right_and_texts_left(capsys):
    output.table(["id", "name"], [(7, "a"), (1234, None), (None, "long name")])
    assert capsys.readouterr().out == "  ID  NAME\n   7  a\n1234\n      long name\n"


def test_a_cell_never_breaks_its_line(capsys):
    output.table(["message"], [("two\nlines",)])
    assert capsys.readouterr().out.splitlines() == ["MESSAGE", "two lines"]


def test_states_are_coloured_on_a_terminal_only_and_never_under_no_color(capsys, monkeypatch):
    output.table(["state"], [("failed",)])
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    output.table(["state"], [("failed",)])
    assert "\x1b[31mfailed" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    output.table(["state"], [("failed",)])
    assert "\x1b" not in capsys.readouterr().out


def test_durations_and_ages_are_told_in_the_unit_that_fits():
    assert [output.duration(seconds) for seconds in (None, 3.21, 245, 7380)] == [
        None,
        "3.2 s",
        "4 min 05 s",
        "2 h 03 min",
    ]
    now = datetime.now(UTC)
    ages = [output.ago(now - timedelta(seconds=seconds)) for seconds in (-5, 59.5, 61, 7300, 200_000)]
    assert ages == ["0 s ago", "59 s ago", "1 min ago", "2 h ago", "2 d ago"]


@pytest.mark.parametrize(
    "tell",
    [
        lambda: output.table(["a", HOSTILE], [(HOSTILE, 1)]),
        lambda: output.fields([("name", HOSTILE), (HOSTILE, "value")]),
        lambda: output.data(HOSTILE),
        lambda: output.message(HOSTILE),
        lambda: output.as_json({"text": HOSTILE}),
        lambda: output.rows_as_text(io.BytesIO(HOSTILE[:-7].encode()), json=False),
        lambda: output.rows_as_text(io.BytesIO(json.dumps(HOSTILE[:-7], ensure_ascii=False).encode()), json=True),
    ],
)
def test_nothing_that_is_printed_commands_the_terminal(tell, capsys):
    tell()
    told = capsys.readouterr()
    assert obeyed(told.out + told.err, but="\n\t\r") == set()
    assert "x1b" in (told.out + told.err) or "u001b" in (told.out + told.err)
    (told.out + told.err).encode()  # no half of a surrogate pair either


def test_json_means_the_same_after_its_characters_were_spelled_out(capsys):
    output.json_line(Told(text=HOSTILE[:-7]))
    told = capsys.readouterr().out
    assert json.loads(told) == {"text": HOSTILE[:-7]}
    assert obeyed(told) == set()


def test_a_cell_stays_in_its_line_and_its_column(capsys):
    output.table(["text", "n"], [("a\tb\rc", 1), ("x", 2)])
    header, first, second = capsys.readouterr().out.splitlines()
    assert first == r"a\tb\rc  1"
    assert header.index("N") == first.index("1") == second.index("2")


def test_names_may_be_in_any_script_but_command_nothing():
    for honest in ("grün ↑", "مرحبا بالعالم", "日本語", "a b", ""):
        assert re.fullmatch(NAME_PATTERN, honest)
        assert visible(honest) == honest
    for character in OBEYED:
        assert not re.fullmatch(NAME_PATTERN, f"a{character}b"), hex(ord(character))


def test_nested_values_are_told_by_dotted_names():
    values = {"parity": {"logits": 1.23456789e-6, "same": True}, "rows": 1234567, "layers": [0, 11], "none": None}
    assert list(output.leaves(values)) == [
        ("parity.logits", "1.235e-06"),
        ("parity.same", "yes"),
        ("rows", "1,234,567"),
        ("layers", "0, 11"),
        ("none", "none"),
    ]
