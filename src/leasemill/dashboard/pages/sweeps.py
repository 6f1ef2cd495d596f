"""Acts on many jobs, as far as they are: those of this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from leasemill.dashboard.viewing import Page, Viewing
from leasemill.errors import NotFound
from leasemill.operator.wording import counted


def read(viewing: Viewing) -> Mapping[str, Any]:
    return {"sweeps": viewing.sweeps.all()}


def read_one(viewing: Viewing) -> Mapping[str, Any]:
    sweep = viewing.sweeps.find(viewing.params["sweep_id"])
    if sweep is None:
        raise NotFound(
            "this process does not know that bulk action: another process started it, or it was long ago. "
            "The audit page lists what was done"
        )
    more = "more than " if sweep.expects_more else ""
    title = f"{sweep.verb.value.capitalize()} {more}{counted(sweep.expected, 'job')}"
    return {"sweep": sweep, "title": title}


PAGE: Final = Page("sweeps", "/sweeps", "Bulk actions", "sweeps.html", read)
ONE: Final = Page("sweep", "/sweeps/{sweep_id}", "Act on many jobs", "sweep.html", read_one)
