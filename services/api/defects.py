"""Errors in single items of a follower that come again at every look: logged when first met, told while they last."""

from collections.abc import Hashable

import structlog

_log = structlog.get_logger("keyhole.following")


class Defects:
    """What is wrong with which item, as this process has met it; a new leader starts anew."""

    def __init__(self, event: str, work: str) -> None:
        self._event = event
        self._work = work  # what cannot be done, as the subject of a sentence
        self._errors: dict[Hashable, str] = {}
        self._told: dict[Hashable, str] = {}

    def met(self, item: Hashable, error: Exception, **fields: object) -> str:
        """Log the error unless it is what the item met last; returns what to tell of it."""
        text = f"{type(error).__name__}: {error}"
        if self._errors.get(item) != text:
            _log.error(self._event, error=text, exc_info=error, **fields)
        self._errors[item] = text
        self._told[item] = (
            f"{self._work} failed unexpectedly ({type(error).__name__}); it is tried again at every look. "
            f"The API's log has the details, as {self._event}."
        )
        return self._told[item]

    def over(self, item: Hashable) -> bool:
        """Forget what the item had met, once its work is done; whether there was something."""
        self._errors.pop(item, None)
        return self._told.pop(item, None) is not None

    def of(self, item: Hashable) -> str | None:
        return self._told.get(item)
