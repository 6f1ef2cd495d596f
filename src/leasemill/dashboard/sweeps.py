"""Acts on everything that matches: counted first, then done page by page in a thread, with progress and a brake.

Jobs are read in pages and acted on by their ids, and the store decides for each whether it may (O2, O5). A sweep ends
at the jobs that existed when it began: one that is redriven and fails again meanwhile is not redriven twice. Sweeps
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

from leasemill.dashboard.sampling import TROUBLES
from leasemill.errors import Refused
from leasemill.kernel import commands as c
from leasemill.kernel.model import ENDED_STATES, REDRIVEN_STATES, SECOND, UNENDED_STATES, Job
from leasemill.operator.fingerprint import fingerprint
from leasemill.store.base import Store
from leasemill.store.cancelling import cancelled

PAGE_JOBS: Final = 500
COUNTED_FOR_S: Final = 0.5
EXAMPLES: Final = 10
SWEEPS_KEPT: Final = 50
AT_A_TIME: Final = 2
STEP_S: Final = 0.2


class SweepVerb(StrEnum):
    CANCEL = "cancel"
    REDRIVE = "redrive"
    PURGE = "purge"


AMONG: Final = {
    SweepVerb.CANCEL: UNENDED_STATES,
    SweepVerb.REDRIVE: REDRIVEN_STATES,
    SweepVerb.PURGE: ENDED_STATES,
}
"""The states of the jobs that a verb is for; a filter narrows them further."""


class Selection(Struct, frozen=True):
    """Which jobs: a filter of the store, and what only a look at each job decides."""

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
    """A dry run: how many jobs match, or at least how many if counting them all would have taken too long."""

    count: int
    is_all: bool
    examples: list[str]


class Sweep:
    """One act on many jobs: how far it is."""

    def __init__(self, verb: SweepVerb, which: str, by: str, reason: str, rate: float | None) -> None:
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
        """None: nobody, or the process ended."""
        self.expected = 0
        self.expects_more = False

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None

    @property
    def left_us(self) -> int | None:
        """How long its rate makes it take still, at least; None: it has no rate."""
        left = max(0, self.expected - self.done - self.left_alone)
        return None if self.rate is None else round(left / self.rate * SECOND)


class Sweeps:
    """The sweeps of this process, the latest ones."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sweeps: OrderedDict[str, Sweep] = OrderedDict()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads: set[threading.Thread] = set()

    def find(self, sweep_id: str) -> Sweep | None:
        with self._lock:
            return self._sweeps.get(sweep_id)

    def all(self) -> list[Sweep]:
        """Newest first."""
        with self._lock:
            return list(reversed(self._sweeps.values()))

    def start(self, verb: SweepVerb, chosen: Selection, which: str, by: str, reason: str, rate: float | None) -> Sweep:
        sweep = Sweep(verb, which, by, reason, rate)
        counted = count(self._store, verb, chosen)
        sweep.expected, sweep.expects_more = counted.count, not counted.is_all
        return self._begin(sweep, lambda: self._act_on(sweep, chosen))

    def cancel_group(self, view: c.GroupView, by: str, reason: str) -> Sweep:
        """With the groups in it, whose members are not counted before."""
        sweep = Sweep(SweepVerb.CANCEL, f"group {view.id}", by, reason, None)
        sweep.expected = view.unfinished
        return self._begin(sweep, lambda: self._cancel_members(sweep, view.id))

    def _begin(self, sweep: Sweep, work: Callable[[], None]) -> Sweep:
        with self._lock:
            if sum(not one.is_over for one in self._sweeps.values()) >= AT_A_TIME:
                raise Refused(f"{AT_A_TIME} bulk actions are already running: wait for one to finish, or stop one")
            self._sweeps[sweep.id] = sweep
            while len(self._sweeps) > SWEEPS_KEPT:
                self._sweeps.popitem(last=False)
            thread = threading.Thread(target=self._run, args=(sweep, work), name="leasemill-sweep", daemon=True)
            thread.start()
            self._threads.add(thread)  # now it can be joined; it takes itself out when it gets the lock
        return sweep

    def close(self) -> None:
        """Stop what is under way, and wait for it."""
        self._stop.set()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def _run(self, sweep: Sweep, work: Callable[[], None]) -> None:
        try:
            work()
        except TROUBLES as error:
            sweep.trouble = str(error)
        finally:
            sweep.ended_at = time.time()
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _act_on(self, sweep: Sweep, chosen: Selection) -> None:
        act = _act(self._store, sweep)
        size = PAGE_JOBS if sweep.rate is None else max(1, min(PAGE_JOBS, int(sweep.rate * STEP_S)))
        next_at = time.monotonic()
        for ids in _batches(matching(self._store, sweep.verb, chosen), size):
            if self._is_over(sweep, max(0.0, next_at - time.monotonic())):
                return
            changed = act(ids)
            sweep.done += changed
            sweep.left_alone += len(ids) - changed
            if sweep.rate is not None:
                next_at = max(next_at, time.monotonic()) + len(ids) / sweep.rate

    def _cancel_members(self, sweep: Sweep, group_id: str) -> None:
        for operated in cancelled(self._store, group_id, sweep.by, sweep.reason):
            sweep.done += len(operated.job_ids)
            sweep.expected = max(sweep.expected, sweep.done)
            if self._is_over(sweep, 0.0):
                return
        sweep.expected = sweep.done  # a group in it counted as one member, whatever its own members are

    def _is_over(self, sweep: Sweep, wait_s: float) -> bool:
        """Whether somebody has stopped it, or the process ends, by the time its next step is due."""
        if self._stop.wait(wait_s):
            sweep.is_stopped = True
        return sweep.is_stopped


def _act(store: Store, sweep: Sweep) -> Callable[[tuple[str, ...]], int]:
    by, reason = sweep.by, sweep.reason

    def cancel(ids: tuple[str, ...]) -> int:
        outcomes = store.cancel(ids, by=by, reason=reason)
        return sum(isinstance(one, c.Cancelled) and not one.is_repeat for one in outcomes)

    def redrive(ids: tuple[str, ...]) -> int:
        return len(store.redrive(c.JobFilter(job_ids=ids), by=by, reason=reason, limit=len(ids)).job_ids)

    def purge(ids: tuple[str, ...]) -> int:
        return len(store.purge(c.JobFilter(job_ids=ids), by=by, reason=reason, limit=len(ids)).job_ids)

    return {SweepVerb.CANCEL: cancel, SweepVerb.REDRIVE: redrive, SweepVerb.PURGE: purge}[sweep.verb]


def narrowed(verb: SweepVerb, chosen: Selection) -> c.JobFilter:
    states = AMONG[verb] if chosen.where.states is None else AMONG[verb] & chosen.where.states
    return msgspec.structs.replace(chosen.where, states=states)


def matching(store: Store, verb: SweepVerb, chosen: Selection) -> Iterator[list[str]]:
    """Ids of the jobs that a verb would be done to, page by page, of those that exist now; a page may be empty."""
    where = narrowed(verb, chosen)
    last = store.totals().seq
    after: int | None = 0
    while after is not None and after <= last:
        page = store.jobs(where, limit=PAGE_JOBS, after=after)
        yield [job.spec.id for job in page.jobs if job.seq <= last and chosen.fits(job)]
        after = page.after


def count(store: Store, verb: SweepVerb, chosen: Selection, for_s: float = COUNTED_FOR_S) -> DryRun:
    """A dry run, for a bounded time."""
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
