"""Carrying out a batch of calls: catch up, take the lock, read what others appended last, decide, append, unlock, sync.

Every answer waits until the log is synced up to the position it was decided at (W1). Adds no rule of queueing of its
own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from leasemill.errors import LeasemillError, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.events import AnyEvent, JobEnqueued
from leasemill.kernel.machine import carry_out, run
from leasemill.kernel.model import SECOND, QueueMode
from leasemill.kernel.state import State
from leasemill.kernel.verbs.cancel import cancels_a_run
from leasemill.kernel.verbs.expire import expire_regardless
from leasemill.store.expiries import Expiries
from leasemill.store.sources import Clock
from leasemill.store.wal.clock import Machine
from leasemill.store.wal.control import FULL, TAIL
from leasemill.store.wal.disk import unavailable
from leasemill.store.wal.log import LockTimeout, Log
from leasemill.store.wal.maintenance import FolderMaintenance
from leasemill.store.wal.options import FileOptions
from leasemill.store.wal.reader import Superseded
from leasemill.store.wal.replica import Replica
from leasemill.store.wal.tickets import READS, LogTicket
from leasemill.store.wal.waiters import FolderWaiters

SUPERSEDED_TRIES: Final = 20
PRUNE_EVERY_S: Final = 5.0
PRUNE_BATCH: Final = 2_000
EXPIRE_BATCH: Final = 1_000


class BatchRunner:
    """Runs one batch at a time, in whatever thread leads the pipeline."""

    def __init__(
        self,
        path: Path,
        options: FileOptions,
        machine: Machine,
        clock: Clock | None,
        replica: Replica,
        waiters: FolderWaiters,
        expiries: Expiries,
    ) -> None:
        self._path = path
        self._options = options
        self._machine = machine
        self._given_clock = clock
        self._replica = replica
        self._waiters = waiters
        self._expiries = expiries
        self.maintenance = FolderMaintenance(path, options)
        self._expired: list[c.Expiration] = []
        self._pruned_at_s = time.monotonic()
        self._unpruned_events = PRUNE_BATCH
        self.is_closed = False

    def run(self, batch: list[LogTicket]) -> None:
        """Decide, append and sync for all of them at once; each gets its answer or its error. Raises no Exception."""
        replica = self._replica
        try:
            if self.is_closed:
                replica.close()
                raise Unavailable(f"the store {self._path} is closed; open it again")
            log = replica.log or replica.open(may_create=False)
            position = self._decide(log, batch)
            for ticket in batch:
                if ticket.is_durable or self._expired:
                    log.sync(position)
                    break
        except LockTimeout as error:
            for ticket in batch:
                ticket.fail(error)
        except LeasemillError as error:
            self._fail(batch, error)
        except OSError as error:
            self._fail(batch, unavailable(self._path, error))
            replica.close()
        except BaseException as error:
            self._fail(batch, Unavailable(f"interrupted by {type(error).__name__}; repeat the call"))
            raise
        else:
            if self._expired:
                expired, self._expired = self._expired, []
                self._expiries.notify(expired)
            if replica.state is not None:
                replica.state.tidy()
            maintenance = self.maintenance
            if log.segment is not maintenance.segment or log.position >= maintenance.due_at:
                maintenance.look(log, may_snapshot=replica.state is not None)

    def _fail(self, batch: list[LogTicket], error: LeasemillError) -> None:
        self._replica.forget()  # it may be ahead of the log
        self._expired = []
        for ticket in batch:
            ticket.fail(error)

    def _decide(self, log: Log, batch: list[LogTicket]) -> int:
        """Where in the log the answers were decided."""
        for _ in range(SUPERSEDED_TRIES):
            try:
                return self._decide_once(log, batch)
            except Superseded:
                self._replica.drop_state()
                log.forget()
        raise Unavailable(
            f"the log in {self._path} changed {SUPERSEDED_TRIES} times while it was read; repeat the call"
        )

    def _decide_once(self, log: Log, batch: list[LogTicket]) -> int:
        replica = self._replica
        if replica.state is None:
            if _are_new_jobs(batch) and not log.is_new_boot:
                position = self._append_unread(log, batch)
                if position is not None:
                    return position
            replica.load()
        are_reads = True
        for ticket in batch:
            if ticket.command is not None and not isinstance(ticket.command, READS):
                are_reads = False
                break
        if are_reads or log.position != log.page[TAIL]:
            log.check_generation()
            replica.catch_up()
        if are_reads and self._answer_unlocked(log, batch):
            return log.position
        with log.locked(meanwhile=replica.catch_up):
            return self._decide_locked(log, batch)

    def _answer_unlocked(self, log: Log, batch: list[LogTicket]) -> bool:
        """Readings, if nothing has to be recorded before them."""
        if all(ticket.command is None for ticket in batch):
            return True
        if not log.is_caught_up or self._has_overdue(log):
            return False
        self._run_all(log, batch)
        return True

    def _decide_locked(self, log: Log, batch: list[LogTicket]) -> int:
        replica = self._replica
        if not log.is_up_to_date:
            log.check()
            replica.catch_up()
        state = replica.state
        assert state is not None
        if log.manifest.clock.boot_id != log.boot_id:
            self._end_other_boots(log, state)
        if log.manifest.acquire_queues is None:
            self._list_acquire_queues(log, state)
        if not replica.is_settled and not any(isinstance(ticket.command, c.Expire) for ticket in batch):
            self._expire_overdue(log, state)
        events = self._run_all(log, batch)
        if self._expiries.listeners:
            self._expired += self._expiries.found(state, events)
        self._unpruned_events += len(events)
        if self._unpruned_events >= PRUNE_BATCH or time.monotonic() - self._pruned_at_s >= PRUNE_EVERY_S:
            events += self._prune(log, state)
        if not events:
            return log.position
        position = log.append(events, state.format)
        if self._waiters.ends.waiters:
            self._waiters.ends.observe(events)
        for ticket in batch:
            if isinstance(ticket.command, c.Cancel | c.CancelGroup) and cancels_a_run(state, events):
                self._waiters.announce_cancellation()
                break
        return position

    def _run_all(self, log: Log, batch: list[LogTicket]) -> list[AnyEvent]:
        state = self._replica.state
        assert state is not None
        now = self._now(log)
        events: list[AnyEvent] = []
        for ticket in batch:
            command = ticket.command
            if command is None:
                continue
            try:
                if log.page[FULL]:
                    _require_room(log, state, command)
                if isinstance(command, c.Acquire):
                    log.list_acquired(_acquire_queues(state, command))
                made, ticket.answer = run(state, command, now)
            except LeasemillError as error:
                ticket.error = error  # refused before anything was applied
            else:
                events += made
        return events

    def _now(self, log: Log) -> int:
        if self._given_clock is not None:
            return self._given_clock.now()
        return self._machine.since_boot_us() + log.manifest.clock.offset_us

    def _append_unread(self, log: Log, batch: list[LogTicket]) -> int | None:
        """W9: jobs with new ids need no replica: they are appended as they are. None: one of their queues may be
        used with acquire (I7), which takes a replica to decide."""
        log.space.require_room_to_grow()
        with log.locked():
            log.check()
            log.skip_to_tail()
            if log.may_be_acquired({job.queue for ticket in batch for job in ticket.command.jobs}):
                return None
            now = self._now(log)
            events: list[AnyEvent] = []
            for ticket in batch:
                events += [JobEnqueued(job, now) for job in ticket.command.jobs]
                ticket.answer = [c.Enqueued(job.id) for job in ticket.command.jobs]
            return log.append(events) if events else log.position

    # What is recorded before the first answer, and now and then

    def _list_acquire_queues(self, log: Log, state: State) -> None:
        """W9: a folder of a version that did not list them, listed by the first process that has read it."""
        with suppress(Unavailable):  # no space: they stay unlisted, and nothing is appended unread
            log.list_acquired([queue.name for queue in state.queues.values() if queue.mode is QueueMode.ACQUIRE])

    def _end_other_boots(self, log: Log, state: State) -> None:
        """W10: no process outlived the boot its lease was granted in."""
        log.refresh()
        if not log.is_new_boot:
            return  # another process has ended them meanwhile
        while events := expire_regardless(state, EXPIRE_BATCH, self._replica.latest_at):
            made = carry_out(state, events, self._replica.latest_at)
            log.sync(self._record(log, state, made))
        log.anchor(self._replica.latest_at)

    def _has_overdue(self, log: Log) -> bool:
        """W15: whether leases expired before this process first looked, and nobody has recorded it."""
        replica = self._replica
        assert replica.state is not None
        if not replica.is_settled:
            replica.is_settled = not replica.state.leases.first(1, self._now(log))
        return not replica.is_settled

    def _expire_overdue(self, log: Log, state: State) -> None:
        """W15: what time decided while nobody looked is on record before the first answer."""
        while self._has_overdue(log) and log.space.has_room_to_finish(log.bytes_left, len(state.leases)):
            events, _ = run(state, c.Expire(EXPIRE_BATCH), self._now(log))
            self._record(log, state, events)

    def _record(self, log: Log, state: State, events: Sequence[AnyEvent]) -> int:
        """Append what nobody asked for."""
        position = log.append(events, state.format)
        self._expired += self._expiries.found(state, events)
        self._waiters.ends.observe(events)
        return position

    def _prune(self, log: Log, state: State) -> list[AnyEvent]:
        """W14: retention, a little with every few appends."""
        self._unpruned_events = 0
        options = self._options
        surplus = len(state.finished) - options.retain_count
        is_due = surplus >= PRUNE_BATCH or time.monotonic() - self._pruned_at_s >= PRUNE_EVERY_S
        if not options.does_maintenance or not is_due:
            return []
        self._pruned_at_s = time.monotonic()
        if surplus >= 2 * PRUNE_BATCH:
            self._unpruned_events = PRUNE_BATCH  # go on with the next append
        now = self._now(log)
        before = now - int(options.retain_for_s * SECOND)
        events, _ = run(state, c.Prune(before, options.retain_count, PRUNE_BATCH), now)
        return events


def _are_new_jobs(batch: list[LogTicket]) -> bool:
    """Without rules, which are decided on, and headers, which need a newer format."""
    for ticket in batch:
        command = ticket.command
        if not isinstance(command, c.Enqueue) or not command.are_new:
            return False
        for job in command.jobs:
            if job.rules is not None or job.headers is not None:
                return False
    return True


def _require_room(log: Log, state: State, command: object) -> None:
    """W7: on a full disk, what adds jobs or gives them out is refused before it is decided."""
    match command:
        case c.Enqueue() | c.Acquire() | c.CreateGroup():
            log.space.require_room_to_grow()
        case c.SetSchedule() | c.FireTicks() | c.FireNow() | c.Backfill():
            log.space.require_room_to_grow()
        case c.Claim() if not log.space.has_room_to_finish(log.bytes_left, len(state.leases) + command.limit):
            raise log.space.no_space()
        case _:
            pass


def _acquire_queues(state: State, command: c.Acquire) -> list[str]:
    """The queues that this call may use with acquire: all but those used with claim."""
    names = {request.queue for request in command.requests}
    return [name for name in names if name not in state.queues or state.queues[name].mode is not QueueMode.CLAIM]
