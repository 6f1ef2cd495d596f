"""How many bytes a call may add to the log, at most: known before it is decided.

A call that weighs too much is refused alone, and a batch is cut before it gets too heavy for one frame. Tokens of other
calls that its events repeat are counted as short, as those are that a store draws; should they not be, the log
refuses the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from leasemill.kernel import commands as c

ITEM_BYTES: Final = 2_000  # an event's ids, names, policy and numbers: all that has a small limit of its own
CHARACTER_BYTES: Final = 4


def weigh(command: Any) -> int:
    """Readings and what is not a command weigh nothing."""
    weigher = _WEIGHERS.get(type(command))
    return 0 if weigher is None else weigher(command)


def _texts(*texts: str) -> int:
    return CHARACTER_BYTES * sum(map(len, texts))


def _reports(reports: Sequence[Any]) -> int:
    return sum(2 * (ITEM_BYTES + CHARACTER_BYTES * len(report.token)) for report in reports)  # L3: an expiry, a refusal


def _payloads(items: Sequence[Any]) -> int:
    return sum(ITEM_BYTES + len(item.payload) for item in items)


def _claim(it: c.Claim) -> int:
    return 2 * ITEM_BYTES * it.limit + _texts(*it.tokens)  # L7: it may expire as many


def _commit(it: c.Commit) -> int:
    return ITEM_BYTES + _texts(it.token) + len(it.result or b"") + _payloads(it.followups)


def _ack(it: c.Ack) -> int:
    return _reports(it.reports) + sum(len(report.result or b"") for report in it.reports)


def _nack(it: c.Nack) -> int:
    return _reports(it.reports) + sum(_texts(report.error, report.report_id) for report in it.reports)


def _release(it: c.Release) -> int:
    return _reports(it.reports) + sum(_texts(report.error or "") for report in it.reports)


def _acquire(it: c.Acquire) -> int:
    return sum(3 * ITEM_BYTES + len(one.payload) + _texts(one.token) for one in it.requests)


def _cancel(it: c.Cancel) -> int:
    return len(it.job_ids) * (ITEM_BYTES + _texts(it.reason)) + _texts(*it.job_ids)


def _sweep(it: c.Redrive | c.Purge) -> int:
    return it.limit * (ITEM_BYTES + _texts(it.reason))


def _one(it: c.Pause | c.Resume | c.SetPolicy) -> int:
    return ITEM_BYTES + _texts(it.reason)


_WEIGHERS: Final[dict[type, Callable[[Any], int]]] = {
    c.Enqueue: lambda it: _payloads(it.jobs),
    c.Claim: _claim,
    c.Start: lambda it: _reports(it.reports),
    c.Extend: lambda it: _reports(it.leases),
    c.Commit: _commit,
    c.Ack: _ack,
    c.Nack: _nack,
    c.Release: _release,
    c.Expire: lambda it: ITEM_BYTES * it.limit,
    c.Acquire: _acquire,
    c.Cancel: _cancel,
    c.Redrive: _sweep,
    c.Purge: _sweep,
    c.Pause: _one,
    c.Resume: _one,
    c.SetPolicy: _one,
    c.Prune: lambda it: ITEM_BYTES * it.limit,
}
