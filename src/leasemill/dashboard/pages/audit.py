"""Audit: every action that the store has on record, newest first, with who and why. One on many jobs is one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from leasemill.dashboard.page_types import Page, PageContext
from leasemill.kernel.model import ACTIONS_KEPT, Action, Verb
from leasemill.kernel.schedule import RESERVED

PAGE_SIZE: Final = 100
TARGETS_SHOWN: Final = 20
JOBS: Final = frozenset({Verb.CANCEL, Verb.REDRIVE, Verb.PURGE})
QUEUES: Final = frozenset({Verb.PAUSE, Verb.RESUME, Verb.SET_POLICY})
LIMITS: Final = frozenset({Verb.SET_LIMIT, Verb.CLEAR_LIMIT, Verb.DECLARE_LIMIT})
GROUPS: Final = frozenset({Verb.SEAL_GROUP})
WORKERS: Final = frozenset({Verb.QUIET_WORKER, Verb.RESUME_WORKER, Verb.STOP_WORKER})
DANGEROUS: Final = frozenset({Verb.CANCEL, Verb.PURGE, Verb.REMOVE_SCHEDULE})


class AuditLine(Struct, frozen=True):
    """Successive actions of one person for one reason: the latest, since when, and what they were done to."""

    last: Action
    first_at: int
    targets: list[str]
    count: int

    @property
    def words(self) -> str:
        return self.last.verb.value.replace("_", " ")

    @property
    def tone(self) -> str:
        return "failed" if self.last.verb in DANGEROUS else ""


def read(context: PageContext) -> Mapping[str, Any]:
    acts = context.once("audit", lambda: context.store.actions(limit=ACTIONS_KEPT))
    by, verb, target = context.asked("by"), context.asked("verb"), context.asked("target")
    fitting = [
        one
        for one in acts
        if by in (None, one.by)
        and verb in (None, one.verb)
        and (target is None or any(target in name for name in one.targets))
    ]
    lines = lines_of(fitting)
    start = context.number("from")
    return {
        "lines": lines[start : start + PAGE_SIZE],
        "count": len(lines),
        "start": start,
        "page_size": PAGE_SIZE,
        "recorded": len(acts),
        "most": ACTIONS_KEPT,
        "people": sorted({one.by for one in acts}),
        "verbs": sorted({one.verb.value for one in acts}),
        "by": by,
        "verb": verb,
        "target": target,
        "link_of": link_of,
        "now": context.store.time(),
    }


def lines_of(acts: Iterable[Action]) -> list[AuditLine]:
    lines: list[AuditLine] = []
    for one in acts:
        line = lines[-1] if lines else None
        if line is not None and (line.last.verb, line.last.by, line.last.reason) == (one.verb, one.by, one.reason):
            targets = [*line.targets, *one.targets][:TARGETS_SHOWN]
            lines[-1] = AuditLine(line.last, one.began_at, targets, line.count + one.count)
        else:
            lines.append(AuditLine(one, one.began_at, [*one.targets], one.count))
    return lines


def link_of(verb: Verb, target: str) -> tuple[str, dict[str, str]]:
    """Return the page that shows what an action was done to: its path and fields."""
    if verb in JOBS:
        return "/job", {"id": target}
    if verb in QUEUES:
        return "/jobs", {"queue": target}
    if verb in LIMITS:
        return "/limits", {"name": target}
    if verb in GROUPS:
        return "/groups", {"id": target}
    if verb in WORKERS:
        return "/workers", {"worker": target}
    return "/schedules", {"name": target.removeprefix(RESERVED)}


PAGE: Final = Page("audit", "/audit", "Audit", "audit.html", read, section="History")
