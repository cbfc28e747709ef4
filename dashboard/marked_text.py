"""Text of a sequence as HTML with some of its tokens marked. The text is untrusted: every part of it is escaped."""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.contracts import printable

LONGEST = 200  # characters of one token that are shown
_COMBINING = r"\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
_PILED = re.compile(f"([{_COMBINING}]{{4}})[{_COMBINING}]+")  # more marks on a letter than any language has
_BOX = "overflow:hidden;white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.7;font-size:0.9rem"
_SCROLLS = "max-height:18rem;overflow:auto"
_GAP = ' <span style="opacity:0.5">[…]</span> '


@dataclass(frozen=True)
class Mark:
    """How a token stands out: colours that read on light and dark, and what a pointer over it shows."""

    colour: str  # #rrggbb
    told: str
    filled: bool = True  # else underlined only


def visible(text: str | None, token_id: int | None = None) -> str:
    """A token on one line: line breaks and tabs as signs, a lone space too; its number where it has no text."""
    if text is None:
        return "" if token_id is None else f"#{token_id}"
    shown = told(text).replace("\n", "⏎").replace("\t", "⇥")
    return "␣" * len(shown) if shown.isspace() else shown


def told(text: str) -> str:
    """A token as it may stand in a text: what a browser would obey is spelled out, marks that pile up and length end.

    Line breaks and tabs stay.
    """
    spelled = printable.visible(_PILED.sub(r"\1", text), keep="\n\t\r")
    return spelled if len(spelled) <= LONGEST else f"{spelled[:LONGEST]}…"


def ending(text: str | None, letters: int) -> str:
    """The last letters of a text on one line: a table's cell that is too narrow would show its beginning."""
    shown = visible(text)
    return shown if len(shown) <= letters else f"…{shown[1 - letters :]}"


def marked_text(
    tokens: Sequence[tuple[int, str]], marks: Mapping[int, Mark], around: Mapping[int, int] | None = None
) -> str:
    """A box with the tokens (position, text) in a row.

    ``around`` leaves out the text that is farther from its positions than so many tokens, and what is left shows at
    once, with line breaks as signs; none shows all, in a box that scrolls.
    """
    shown = [
        (position, text if around is None else text.replace("\n", "⏎ "))
        for position, text in tokens
        if around is None or any(abs(position - centre) <= reach for centre, reach in around.items())
    ]
    parts, last = [], tokens[0][0] - 1 if tokens else -1
    for position, text in shown:
        if position != last + 1:
            parts.append(_GAP)
        parts.append(_token(text, marks.get(position)))
        last = position
    style = f"{_BOX};{_SCROLLS}" if around is None else _BOX
    return f'<div style="{style}">{"".join(parts)}</div>'


def legend(marks: Sequence[Mark]) -> str:
    """One line of samples of these marks."""
    return '<div style="font-size:0.85rem">' + " &nbsp; ".join(_token(mark.told, mark) for mark in marks) + "</div>"


def _token(text: str, mark: Mark | None) -> str:
    if mark is None:
        return html.escape(told(text))
    style = f"border-bottom:2px solid {mark.colour}"
    if mark.filled:
        style = f"background:{mark.colour}44;border:1.5px solid {mark.colour};border-radius:3px;padding:0 1px"
    shown = html.escape(told(text) if text.strip() else visible(text))
    return f'<span style="{style}" title="{html.escape(mark.told)}">{shown}</span>'
