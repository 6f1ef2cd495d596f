"""The bulk actions of this process, and how far they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from leasemill.dashboard.page_types import Page, PageContext
from leasemill.errors import NotFound
from leasemill.operator.wording import counted


def read(context: PageContext) -> Mapping[str, Any]:
    return {"sweeps": context.bulk_actions.all()}


def read_one(context: PageContext) -> Mapping[str, Any]:
    action = context.bulk_actions.find(context.params["sweep_id"])
    if action is None:
        raise NotFound(
            "this process does not know that bulk action: another process started it, or it was long ago. "
            "The audit page lists what was done"
        )
    more = "more than " if action.expects_more else ""
    title = f"{action.verb.value.capitalize()} {more}{counted(action.expected, 'job')}"
    return {"sweep": action, "title": title}


PAGE: Final = Page("sweeps", "/sweeps", "Bulk actions", "sweeps.html", read)
ONE: Final = Page("sweep", "/sweeps/{sweep_id}", "Act on many jobs", "sweep.html", read_one)
