"""Checkpoints: the list with filters and sizes, or with ``?checkpoint=12`` in the address that checkpoint."""

from dashboard import url
from dashboard.problems import guarded
from dashboard.views.checkpoint_detail import checkpoint_detail
from dashboard.views.checkpoint_list import checkpoint_list


def page() -> None:
    number = url.integer("checkpoint")
    if number is None:
        checkpoint_list()
    else:
        checkpoint_detail(number)


guarded(page)
