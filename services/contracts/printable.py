"""Characters that a terminal or a browser obeys instead of showing: controls, line separators, bidirectional overrides.

Names that people give may not contain them; texts that come from data are shown with them spelled out.
"""

import re

# Inside a character class, in the syntax that Python, pydantic's Rust and JSON Schema share.
COMMANDS = r"\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069"
NAME_PATTERN = f"^[^{COMMANDS}]*$"
# Marks of direction occur in honest Arabic and Hebrew names, and surrogates are how Python carries bytes that are no
# UTF-8: both are allowed in, where they can come in at all, but printed spelled out.
_SPELLED_OUT = re.compile(rf"[{COMMANDS}\u061c\u200e\u200f\ud800-\udfff]")


def visible(text: str, keep: str = "") -> str:
    """The text with such characters written as Python escapes, but for those of ``keep``."""
    return _SPELLED_OUT.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), text)


def visible_json(text: str) -> str:
    """The same JSON with such characters as JSON escapes; what stands between its values is left alone."""
    return _SPELLED_OUT.sub(lambda found: found[0] if found[0] in "\n\t\r" else f"\\u{ord(found[0]):04x}", text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
