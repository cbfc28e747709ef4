"""Numbers, times and user text as the pages show them."""

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$:&^=])")
_HASH = re.compile(r"\b([0-9a-f]{7})[0-9a-f]{33,57}\b")
NOTHING = "–"


def signed_decimals(value: float, digits: int) -> str:
    """``+0.0123``; what rounds to nothing has no sign."""
    text = f"{value:+z.{digits}f}"
    return text if float(text) else text.lstrip("+")


def markdown_text(text: str) -> str:
    """User text made safe for Streamlit's markdown: no formatting, links, HTML, LaTeX, colour or emoji directives."""
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def markdown_words(text: str) -> str:
    """As ``markdown_text``, but what stands between backticks is shown as code, as our own hints mean it."""
    parts = re.split(r"(`[^`\n]+`)", " ".join(text.split()))
    return "".join(part if index % 2 else _MARKDOWN.sub(r"\\\1", part) for index, part in enumerate(parts))


def shortened(text: str, length: int = 60, head_share: float = 0.5) -> str:
    """The text, its middle left out where it is longer: the ends of paths and names tell them apart."""
    if len(text) <= length:
        return text
    head = min(int((length - 1) * head_share), length - 2)
    return f"{text[:head]}…{text[-(length - 1 - head) :]}"


def told_apart(texts: Iterable[str], length: int) -> dict[str, str]:
    """A shortened form of every text: cut where the most of them stay different, rather at the front than at the end.

    Hashes of revisions are cut to seven digits first, as git does.
    """
    briefly = {text: _HASH.sub(r"\1", text) for text in texts}

    def cut(head_share: float) -> dict[str, str]:
        return {text: shortened(brief, length, head_share) for text, brief in briefly.items()}

    return max((cut(share) for share in (0.3, 0.5, 0.7, 0.9)), key=lambda forms: len(set(forms.values())))


def count(number: int | None) -> str:
    return NOTHING if number is None else f"{number:,}"


def byte_size(number: int) -> str:
    """In units of 1,000 bytes, three digits: 512 B, 4.61 MB."""
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        value = number / 1000**power
        if value >= 1:
            return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"
    return f"{number} B"


def percent(share: float | None) -> str:
    """A share between 0 and 1, never rounded up to 100 % or down to 0 %."""
    if share is None or math.isnan(share):
        return NOTHING
    if 0.999 < share < 1:
        return "> 99.9 %"
    if 0 < share < 0.001:
        return "< 0.1 %"
    return f"{100 * share:.1f} %"


def power_of_ten(log10: float | None) -> str:
    """10 to the power ``log10`` with two or three digits: 4.6, 310, 12,000, 3.1 × 10⁷."""
    if log10 is None or math.isnan(log10):
        return NOTHING
    if math.isinf(log10):
        return "∞" if log10 > 0 else "0"
    if log10 >= 6 or log10 < -3:
        exponent = math.floor(log10)
        mantissa = f"{10 ** (log10 - exponent):.1f}"
        if mantissa == "10.0":
            mantissa, exponent = "1.0", exponent + 1
        return f"{mantissa} × 10{str(exponent).translate(_SUPERSCRIPT)}"
    value = 10**log10
    if value >= 100:
        digits = 2 - math.floor(log10)
        return f"{round(value, digits):,.0f}"
    return f"{value:.2g}" if value < 1 else f"{value:.1f}"


def tick(exponent: int) -> str:
    """Label of a power of ten on an axis."""
    return {0: "1", 1: "10", 2: "100"}.get(exponent, f"10{str(exponent).translate(_SUPERSCRIPT)}")


def duration(seconds: float | None) -> str:
    """Two units at most: 8 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if seconds is None:
        return NOTHING
    whole = max(0, round(seconds))
    for unit, size, next_unit, next_size in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // next_size
            return f"{whole // size} {unit}" + (f" {rest} {next_unit}" if rest else "")
    return f"{round(seconds, 1):g} s" if 0 < seconds < 10 else f"{whole} s"


def moment(time: datetime | None) -> str:
    """UTC to the second, sortable."""
    return NOTHING if time is None else time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
