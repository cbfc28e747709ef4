"""Text output of the command."""

from datetime import UTC, datetime, timedelta

from services.cli import output


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
