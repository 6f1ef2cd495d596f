"""Actions on everything that matches: counted first, then done page by page in a thread, with progress and a brake.

Jobs are read in pages and acted on by their ids, and the store decides for each whether it may (O2, O5). A bulk action
ends at the jobs that existed when it began: one that is redriven and fails again meanwhile is not redriven twice. They
live in the process that started them; what they did is in the store's list of actions.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Struct

from leasemill.dashboard.sampler import TROUBLES
from leasemill.errors import Refused
from leasemill.kernel import commands as c
from leasemill.kernel.model import ENDED_STATES, REDRIVEN_STATES, SECOND, UNENDED_STATES, Job
from leasemill.operator.fingerprint import fingerprint
from leasemill.store.base import Store
from leasemill.store.operations import cancelled

PAGE_JOBS: Final = 500
COUNTED_FOR_S: Final = 0.5
EXAMPLES: Final = 10
BULK_ACTIONS_KEPT: Final = 50
AT_A_TIME: Final = 2
STEP_S: Final = 0.2


class BulkVerb(StrEnum):
    CANCEL = "cancel"
    REDRIVE = "redrive"
    PURGE = "purge"


AMONG: Final = {
    BulkVerb.CANCEL: UNENDED_STATES,
    BulkVerb.REDRIVE: REDRIVEN_STATES,
    BulkVerb.PURGE: ENDED_STATES,
}
"""The states of the jobs that a verb is for; a filter narrows them further."""


class Selection(Struct, frozen=True):
    """The chosen jobs: a filter of the store, and what only a look at each job decides."""

    where: c.JobFilter
    id_prefix: str | None = None
    header: tuple[str, str | None] | None = None
    """A header and its value; None: any value."""
    fingerprint: str | None = None

    def fits(self, job: Job) -> bool:
        if self.id_prefix is not None and not job.spec.id.startswith(self.id_prefix):
            return False
        if self.header is not None:
            name, value = self.header
            found = (job.spec.headers or {}).get(name)
            if found is None or (value is not None and value != found):
                return False
        return self.fingerprint is None or fingerprint(job) == self.fingerprint

    @property
    def looks_at_each(self) -> bool:
        return self.id_prefix is not None or self.header is not None or self.fingerprint is not None


class DryRun(Struct, frozen=True):
    """The result of a dry run: how many jobs match, or at least how many if counting them all would take too long."""

    count: int
    is_all: bool
    examples: list[str]


class BulkAction:
    """One action on many jobs, and how far it is."""

    def __init__(self, verb: BulkVerb, which: str, by: str, reason: str, rate: float | None) -> None:
        self.id = secrets.token_hex(6)
        self.verb = verb
        self.which = which
        """Which jobs, in words."""
        self.by = by
        self.reason = reason
        self.rate = rate
        self.began_at = time.time()
        self.done = 0
        self.left_alone = 0
        self.ended_at: float | None = None
        self.trouble: str | None = None
        self.is_stopped = False
        self.stopped_by: str | None = None
        """Who stopped it; None if it was not stopped, or by the end of the process."""
        self.expected = 0
        self.expects_more = False

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None

    @property
    def left_us(self) -> int | None:
        """How much longer its rate makes it take, at least; None if it has no rate."""
        left = max(0, self.expected - self.done - self.left_alone)
        return None if self.rate is None else round(left / self.rate * SECOND)


class BulkActions:
    """The latest bulk actions of this process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._actions: OrderedDict[str, BulkAction] = OrderedDict()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads: set[threading.Thread] = set()

    def find(self, action_id: str) -> BulkAction | None:
        with self._lock:
            return self._actions.get(action_id)

    def all(self) -> list[BulkAction]:
        """Return the bulk actions, newest first."""
        with self._lock:
            return list(reversed(self._actions.values()))

    def start(
        self, verb: BulkVerb, chosen: Selection, which: str, by: str, reason: str, rate: float | None
    ) -> BulkAction:
        action = BulkAction(verb, which, by, reason, rate)
        counted = count(self._store, verb, chosen)
        action.expected, action.expects_more = counted.count, not counted.is_all
        return self._begin(action, lambda: self._act_on(action, chosen))

    def cancel_group(self, view: c.GroupView, by: str, reason: str) -> BulkAction:
        """Cancel a group with the groups in it, whose members are not counted before."""
        action = BulkAction(BulkVerb.CANCEL, f"group {view.id}", by, reason, None)
        action.expected = view.unfinished
        return self._begin(action, lambda: self._cancel_members(action, view.id))

    def _begin(self, action: BulkAction, work: Callable[[], None]) -> BulkAction:
        with self._lock:
            if sum(not one.is_over for one in self._actions.values()) >= AT_A_TIME:
                raise Refused(f"{AT_A_TIME} bulk actions are already running: wait for one to finish, or stop one")
            self._actions[action.id] = action
            while len(self._actions) > BULK_ACTIONS_KEPT:
                self._actions.popitem(last=False)
            thread = threading.Thread(target=self._run, args=(action, work), name="leasemill-bulk-action", daemon=True)
            thread.start()
            self._threads.add(thread)  # now it can be joined; it takes itself out when it gets the lock
        return action

    def close(self) -> None:
        """Stop the running bulk actions, and wait for them."""
        self._stop.set()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def _run(self, action: BulkAction, work: Callable[[], None]) -> None:
        try:
            work()
        except TROUBLES as error:
            action.trouble = str(error)
        finally:
            action.ended_at = time.time()
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _act_on(self, action: BulkAction, chosen: Selection) -> None:
        act = _act(self._store, action)
        size = PAGE_JOBS if action.rate is None else max(1, min(PAGE_JOBS, int(action.rate * STEP_S)))
        next_at = time.monotonic()
        for ids in _batches(matching(self._store, action.verb, chosen), size):
            if self._is_over(action, max(0.0, next_at - time.monotonic())):
                return
            changed = act(ids)
            action.done += changed
            action.left_alone += len(ids) - changed
            if action.rate is not None:
                next_at = max(next_at, time.monotonic()) + len(ids) / action.rate

    def _cancel_members(self, action: BulkAction, group_id: str) -> None:
        for operated in cancelled(self._store, group_id, action.by, action.reason):
            action.done += len(operated.job_ids)
            action.expected = max(action.expected, action.done)
            if self._is_over(action, 0.0):
                return
        action.expected = action.done  # a group in it counted as one member, whatever its own members are

    def _is_over(self, action: BulkAction, wait_s: float) -> bool:
        """Wait until the next step is due. Return whether it was stopped, or the process ends, by then."""
        if self._stop.wait(wait_s):
            action.is_stopped = True
        return action.is_stopped


def _act(store: Store, action: BulkAction) -> Callable[[tuple[str, ...]], int]:
    by, reason = action.by, action.reason

    def cancel(ids: tuple[str, ...]) -> int:
        outcomes = store.cancel(ids, by=by, reason=reason)
        return sum(isinstance(one, c.Cancelled) and not one.is_repeat for one in outcomes)

    def redrive(ids: tuple[str, ...]) -> int:
        return len(store.redrive(c.JobFilter(job_ids=ids), by=by, reason=reason, limit=len(ids)).job_ids)

    def purge(ids: tuple[str, ...]) -> int:
        return len(store.purge(c.JobFilter(job_ids=ids), by=by, reason=reason, limit=len(ids)).job_ids)

    return {BulkVerb.CANCEL: cancel, BulkVerb.REDRIVE: redrive, BulkVerb.PURGE: purge}[action.verb]


def narrowed(verb: BulkVerb, chosen: Selection) -> c.JobFilter:
    states = AMONG[verb] if chosen.where.states is None else AMONG[verb] & chosen.where.states
    return msgspec.structs.replace(chosen.where, states=states)


def matching(store: Store, verb: BulkVerb, chosen: Selection) -> Iterator[list[str]]:
    """Yield the ids of the jobs that a verb applies to, page by page. Jobs enqueued meanwhile are left out; a page may
    be empty."""
    where = narrowed(verb, chosen)
    last = store.totals().seq
    after: int | None = 0
    while after is not None and after <= last:
        page = store.jobs(where, limit=PAGE_JOBS, after=after)
        yield [job.spec.id for job in page.jobs if job.seq <= last and chosen.fits(job)]
        after = page.after


def count(store: Store, verb: BulkVerb, chosen: Selection, for_s: float = COUNTED_FOR_S) -> DryRun:
    """Count the jobs that a verb applies to, for a bounded time."""
    until = time.monotonic() + for_s
    found = 0
    examples: list[str] = []
    for ids in matching(store, verb, chosen):
        found += len(ids)
        examples += ids[: EXAMPLES - len(examples)]
        if time.monotonic() > until:
            return DryRun(found, False, examples)
    return DryRun(found, True, examples)


def _batches(pages: Iterator[list[str]], size: int) -> Iterator[tuple[str, ...]]:
    for ids in pages:
        for start in range(0, len(ids), size):
            yield tuple(ids[start : start + size])
