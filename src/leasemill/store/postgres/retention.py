"""Retention (O7): jobs that succeeded long ago, or beyond a number, are forgotten; so are idle requests and rates, and
unique keys that nobody holds. Each call is one short transaction; `retention_loop.py` decides when it is made."""

from __future__ import annotations

from typing import Final, NamedTuple

from leasemill.kernel import commands as c
from leasemill.store.postgres.admission import lock
from leasemill.store.postgres.known import Known
from leasemill.store.postgres.steps import Steps, Verb, row, rows, send, transact, transaction

BATCH: Final = 2_000
JOINS_LEFT: Final = 100
"""How many rows of additions an open group may have for good."""


class Pruned(NamedTuple):
    """What one batch did and saw."""

    forgotten: int
    has_more_rows: bool
    """There may be more to forget: not all rows of finished were looked at."""
    last_at: int | None
    """When the last that were forgotten had ended."""
    row_count: int
    """In how many rows of finished they were."""
    succeeded: int
    """How many succeeded jobs there were."""


class Retention:
    """Forgets what a store need not keep. Each method is a verb; most of them are one short transaction."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._looked_at_key = ("", "")

    def prune(self, command: c.Prune) -> Verb[int]:
        """How many jobs were forgotten."""

        def steps() -> Steps[Pruned]:
            yield from send(lock(self._known.retention_key))
            yield from row("prune_groups", _given(command))
            return (yield from _prune(command, from_at=0, rows=command.limit))

        pruned = yield from transact(lambda _: transaction(steps()), is_repeatable=False)
        yield from transact(lambda _: tally())
        return pruned.forgotten

    def prune_some(self, command: c.Prune, *, from_at: int, rows: int) -> Verb[Pruned | None]:
        """Only jobs that ended at `from_at` or later, from at most `rows` rows of finished. None: another process is
        pruning."""

        def steps() -> Steps[Pruned | None]:
            if not (yield from self._is_locked()):
                return None
            return (yield from _prune(command, from_at=from_at, rows=rows))

        pruned = yield from transact(lambda _: transaction(steps()), is_repeatable=False)
        if pruned is not None:
            yield from transact(lambda _: tally())
        return pruned

    def prune_groups(self, command: c.Prune) -> Verb[int]:
        """How many groups were forgotten; none, if another process is at it."""

        def steps() -> Steps[int]:
            if not (yield from self._is_locked()):
                return 0
            (count,) = yield from row("prune_groups", _given(command))
            return int(count)

        return transact(lambda _: transaction(steps()), is_repeatable=False)

    def _is_locked(self) -> Steps[bool]:
        """Jobs that succeeded are forgotten by one process at a time, so that none is counted twice."""
        (is_ours,) = yield from row("try_lock_number", {"key": self._known.retention_key})
        return bool(is_ours)

    def fold_groups(self) -> Verb[None]:
        """Open groups that grow by one member at a time are read as soon as others."""
        yield from transact(lambda _: rows("fold_open_groups", {"joins": JOINS_LEFT}))

    def forget_requests(self) -> Verb[int]:
        return transact(lambda _: _count("forget_requests"))

    def forget_rates(self) -> Verb[int]:
        return transact(lambda _: _count("forget_rates"))

    def forget_keys(self) -> Verb[int]:
        """U6: rows of keys that hold nothing go, a page at a time, round and round. How many were looked at.

        Judged twice, the second time with the rows locked: a key may be taken again meanwhile.
        """
        queue, key = self._looked_at_key
        given = {"after_queue": queue, "after": key, "limit": BATCH}
        count, last, queues, keys = yield from transact(lambda _: row("stale_keys", given))
        if keys:
            yield from transact(lambda _: transaction(_forget_keys(queues, keys)))
        self._looked_at_key = tuple(last) if count == BATCH else ("", "")
        return int(count)


def tally() -> Steps[None]:
    """Rows of tallies are added up."""
    yield from rows("tally", {})


def _prune(command: c.Prune, *, from_at: int, rows: int) -> Steps[Pruned]:
    return Pruned(*(yield from row("prune", {**_given(command), "from_at": from_at, "rows": rows})))


def _count(statement: str) -> Steps[int]:
    (count,) = yield from row(statement, {"limit": BATCH})
    return int(count)


def _forget_keys(queues: list[str], keys: list[str]) -> Steps[None]:
    locked = yield from rows("lock_stale_keys", {"queues": queues, "keys": keys})
    named = {"queues": [queue for queue, _ in locked], "keys": [key for _, key in locked]}
    yield from rows("forget_keys", named)


def _given(command: c.Prune) -> dict[str, object]:
    return {"before": command.before, "keep": command.keep, "limit": command.limit}
