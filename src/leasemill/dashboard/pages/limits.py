"""Limits: places that are held, rates, what waits, who set the numbers, and one of them with its keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from leasemill.dashboard.page_types import Page, PageContext
from leasemill.errors import NotFound
from leasemill.kernel.commands import LimitView
from leasemill.kernel.model import QUEUE_LIMIT
from leasemill.operator.wording import numbers, rate_of

PAGE_SIZE: Final = 100
KEYS_SHOWN: Final = 50


def read(context: PageContext) -> Mapping[str, Any]:
    name = context.asked("name")
    after = context.asked("after") or ""
    now = context.store.time()
    shared = {"numbers": numbers, "rate_of": rate_of, "source_of": source_of, "after": after, "now": now}
    if name is not None:
        view = context.store.limit(name, limit=KEYS_SHOWN + 1, after=after)
        if view is None:
            raise NotFound(f"there is no limit {name!r}: no code declares it, and no operator has set it")
        return {
            **shared,
            "title": name,
            "view": view,
            "keys": view.keys[:KEYS_SHOWN],
            "next_after": view.keys[KEYS_SHOWN - 1].key if len(view.keys) > KEYS_SHOWN else None,
            "queue": name.removeprefix(QUEUE_LIMIT) if name.startswith(QUEUE_LIMIT) else None,
        }
    found = context.store.limits(limit=PAGE_SIZE + 1, after=after)
    return {
        **shared,
        "view": None,
        "views": found[:PAGE_SIZE],
        "next_after": found[PAGE_SIZE - 1].name if len(found) > PAGE_SIZE else None,
    }


def source_of(view: LimitView) -> str:
    """Say whose numbers apply."""
    if view.record.set is not None:
        return "operator"
    return "–" if view.record.declared is None else "code"


PAGE: Final = Page("limits", "/limits", "Limits", "limits.html", read, section="Control")
