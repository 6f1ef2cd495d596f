"""Acts on many jobs, as far as they are: those of this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from leasemill.dashboard.viewing import Page, Viewing
from leasemill.errors import NotFound


def read(viewing: Viewing) -> Mapping[str, Any]:
    return {"sweeps": viewing.sweeps.all()}


def read_one(viewing: Viewing) -> Mapping[str, Any]:
    sweep = viewing.sweeps.find(viewing.params["sweep_id"])
    if sweep is None:
        raise NotFound(
            "this process does not know that bulk action: another process started it, or it was long ago. "
            "The audit page lists what was done"
        )
    return {"sweep": sweep, "title": f"{sweep.verb.value.capitalize()} many jobs"}


PAGE: Final = Page("sweeps", "/sweeps", "Bulk actions", "sweeps.html", read)
ONE: Final = Page("sweep", "/sweeps/{sweep_id}", "Act on many jobs", "sweep.html", read_one)
