"""Carrying out a batch of calls: catch up, take the lock, read what others appended last, decide, append, unlock, sync.

Every answer waits until the log is synced up to the position it was decided at (W1). Adds no rule of queueing of its
own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Final

from leasemill.errors import Broken, LeasemillError, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.events import AnyEvent, JobEnqueued
from leasemill.kernel.machine import carry_out, run
from leasemill.kernel.model import NEVER, SECOND, JobSpec, JobState, QueueMode
from leasemill.kernel.state import State
from leasemill.kernel.verbs.cancel import cancels_a_run
from leasemill.kernel.verbs.expire import MAY_EXPIRE, expirations, expire_regardless
from leasemill.store.file.clock import Machine, shown, step
from leasemill.store.file.control import FULL, TAIL
from leasemill.store.file.disk import unavailable
from leasemill.store.file.log import LockTimeout, Log
from leasemill.store.file.maintenance import FolderMaintenance
from leasemill.store.file.options import FileOptions
from leasemill.store.file.reader import Superseded
from leasemill.store.file.replica import Replica
from leasemill.store.file.tickets import READS, LogTicket
from leasemill.store.file.waiters import FolderWaiters
from leasemill.store.notifications import Expiries
from leasemill.store.readings import Pulse
from leasemill.store.system import Clock

LOGGER: Final = logging.getLogger("leasemill.wal")
SUPERSEDED_TRIES: Final = 20
PULSE_EVERY_S: Final = 0.25
AT_REST_S: Final = 1.0
"""Without an append: longer than a busy process pauses."""
PRUNE_EVERY_S: Final = 5.0
PRUNE_BATCH: Final = 500
"""Some milliseconds, in which everybody waits."""
PRUNE_LEAST: Final = 50
EXPIRE_BATCH: Final = 1_000
ADDING_JOBS: Final = (c.Enqueue, c.Acquire, c.CreateGroup, c.SetSchedule, c.FireTicks, c.FireNow, c.Backfill)
TAKING_ROOM: Final = (*ADDING_JOBS, c.Claim)


_sets_clock: Final = attrgetter("sets_clock")


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
        self._pulse_at_s = 0.0
        self._tail_seen = 0
        self._tail_moved_at_s = 0.0
        self._pruned_at_s = time.monotonic()
        self._unpruned_events = PRUNE_BATCH
        self._is_behind = False
        """There was more to prune the last time."""
        self.is_closed = False

    def run(self, batch: list[LogTicket]) -> None:
        """Decide, append and sync for all of them at once; each gets its answer or its error. Raises no Exception.

        The lock is held while the batch is decided and appended, and not while it is synced: meanwhile other processes
        append, and their next sync finds a part of its work done. So an answer may be computed from events of another
        process that are not on disk yet; W1 makes it wait until they are, because `position` lies behind them."""
        replica = self._replica
        try:
            if self.is_closed:
                replica.close()
                raise Unavailable(f"the store {self._path} is closed; open it again")
            log = replica.log or replica.open(may_create=False)
            try:
                position = self._decide(log, batch)
            except Superseded:
                position = self._decide_again(log, batch)
            for ticket in batch:
                if ticket.is_durable or self._expired:
                    log.sync(position)
                    break
        except LockTimeout as error:  # nothing was decided: the replica is as good as before
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
            if replica.state is not None and replica.state.is_spill_due:
                replica.state.spill_oldest()
            maintenance = self.maintenance
            if log.segment is not maintenance.segment or log.position >= maintenance.due_at or log.page[FULL]:
                maintenance.look(log, may_snapshot=replica.state is not None)

    def _fail(self, batch: list[LogTicket], error: LeasemillError) -> None:
        self._replica.forget()  # it may be ahead of the log
        self._expired = []
        for ticket in batch:
            ticket.fail(error)

    def _decide_again(self, log: Log, batch: list[LogTicket]) -> int:
        """Begin again from the latest snapshot: what was read is not the log any more."""
        for _ in range(SUPERSEDED_TRIES):
            self._replica.drop_state()
            log.forget()
            with suppress(Superseded):
                return self._decide(log, batch)
        raise Unavailable(
            f"the log in {self._path} changed {SUPERSEDED_TRIES} times while it was read; repeat the call"
        )

    def _decide(self, log: Log, batch: list[LogTicket]) -> int:
        """Returns where in the log the answers were decided. There are three ways, the cheapest first.

        New jobs are appended without knowing the state, by a process that has not read it (W9). Readings are answered
        from the replica without the lock. All else is decided under the lock, where the state is what the log says."""
        replica = self._replica
        if replica.state is None:
            for ticket in batch:
                if not ticket.are_plain:
                    break
            else:
                position = self._append_unread(log, batch)
                if position is not None:
                    return position
            replica.load()
        are_reads = True
        for ticket in batch:
            if ticket.sets_clock or (ticket.command is not None and type(ticket.command) not in READS):
                are_reads = False
                break
        tail = log.page[TAIL]
        if len(batch) == 1 and batch[0].within_s is not None:
            self._keep_up(log, batch[0], tail)
            return log.position
        if are_reads or log.position != tail:
            # Before the lock is taken, and again while it is waited for: what is read here holds nobody up, and little
            # is left to read under the lock. The tail was read first, so that a reading sees all before its call.
            log.check_generation()
            replica.catch_up()
        if are_reads and self._answer_unlocked(log, batch, tail):
            return log.position
        with log.locked(meanwhile=replica.catch_up):
            return self._decide_locked(log, batch)

    def _keep_up(self, log: Log, ticket: LogTicket, tail: int) -> None:
        """Catch up: for a limited time while other processes write, and to the end where none does."""
        now_s = time.monotonic()
        if tail != self._tail_seen:
            self._tail_seen, self._tail_moved_at_s = tail, now_s
        is_busy = now_s - self._tail_moved_at_s < AT_REST_S
        pulse = log.control.pulse_behind(log.position) if is_busy else None
        log.check_generation()
        self._replica.catch_up(None if pulse is None else ticket.within_s)
        ticket.answer = None if pulse is None or log.position >= tail else Pulse(*pulse)

    def _answer_unlocked(self, log: Log, batch: list[LogTicket], tail: int) -> bool:
        """Answer readings, if nothing has to be recorded before them. They see all that was appended before the call,
        and need no more: a process that reads beside a busy one must not stop it by taking the lock."""
        if all(ticket.command is None for ticket in batch):
            return True
        if not log.has_read(tail) or self._has_overdue(log) or not log.disk.is_there:
            return False
        self._run_all(log, batch)
        return True

    def _decide_locked(self, log: Log, batch: list[LogTicket]) -> int:
        replica = self._replica
        # Nobody else appends from here on. Since this process last read, others may have appended, a sync may have
        # failed, or the previous holder may have died while it wrote: `check` and `catch_up` deal with all three.
        if not log.is_up_to_date:
            log.check()
            replica.catch_up()
        state = replica.state
        assert state is not None
        if any(map(_sets_clock, batch)):
            replica.latest_at = max(replica.latest_at, self._now(log))
            log.forget_clock()
        if log.manifest.clock.boot_id != log.boot_id:
            self._end_other_boots(log, state)
        if log.manifest.acquire_queues is None:
            self._list_acquire_queues(log, state)
        if not replica.is_settled and not any(isinstance(ticket.command, c.Expire) for ticket in batch):
            self._expire_overdue(log, state)
        events = self._run_all(log, batch)
        for event in events:
            if type(event) in MAY_EXPIRE:
                self._expired += expirations(state, events)
                break
        self._unpruned_events += len(events)
        now_s = time.monotonic()
        is_time = self._is_behind or now_s - self._pruned_at_s >= PRUNE_EVERY_S
        if is_time or self._unpruned_events >= PRUNE_BATCH:
            events += self._prune(log, state)
        if not events:
            return log.position
        # One frame for the whole batch, with what retention forgets: a torn write keeps all of it or nothing.
        position = log.append(events, state.format, may_use_reserve=not any(map(_takes_room, batch)))
        if now_s - self._pulse_at_s >= PULSE_EVERY_S:
            self._pulse_at_s = now_s
            leased = sum(queue.counts[JobState.LEASED] for queue in state.queues.values())
            log.control.publish_pulse(state.seq, state.fence, leased, position)
        # Before the sync: a waiter that is woken now reads the job by a call of its own, and that waits for a sync.
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
            except Broken:
                raise  # something may have been applied: none of it is appended
            except LeasemillError as error:
                ticket.error = error  # refused before anything was applied
            else:
                events += made
        return events

    def _now(self, log: Log) -> int:
        if self._given_clock is not None:
            return self._given_clock.now()
        return self._machine.since_boot_ns() // 1_000 + log.manifest.clock.offset_us

    def _append_unread(self, log: Log, batch: list[LogTicket]) -> int | None:
        """W9: append jobs with new ids as they are; they need no replica. Returns None if they do need one: a queue may
        be used with acquire (I7), or leases of an earlier boot are to be ended (W10)."""
        if log.manifest.clock.boot_id != log.boot_id:
            return None
        if log.page[FULL]:
            log.space.require_room_to_grow()
        jobs: list[JobSpec] = []
        for ticket in batch:
            jobs += ticket.command.jobs
            ticket.answer = [c.Enqueued(job.id) for job in ticket.command.jobs]
        queues = {job.queue for job in jobs}
        with log.locked():
            if not log.is_intact:
                log.check()
            log.skip_to_tail()
            if log.page[FULL]:
                raise log.space.no_space()  # a rotation was finished that has used the reserve
            if log.may_be_acquired(queues):
                return None
            now = self._now(log)
            events = [JobEnqueued(job, now) for job in jobs]
            return log.append(events, may_use_reserve=False) if events else log.position

    # What is recorded before the first answer, and now and then

    def _list_acquire_queues(self, log: Log, state: State) -> None:
        """W9: a folder of a version that did not list them, listed by the first process that has read it."""
        with suppress(Unavailable):  # no space: they stay unlisted, and nothing is appended unread
            log.list_acquired([queue.name for queue in state.queues.values() if queue.mode is QueueMode.ACQUIRE])

    def _end_other_boots(self, log: Log, state: State) -> None:
        """W10: no process outlived the boot its lease was granted in. W17: in a boot, holders keep what they hold."""
        log.refresh()
        if not log.is_new_boot:
            return  # another process has ended them meanwhile
        replica, is_asked = self._replica, log.manifest.clock.is_to_be_set(log.boot_id)
        until = replica.latest_at if is_asked else NEVER
        while events := expire_regardless(state, EXPIRE_BATCH, replica.latest_at, until):
            made = carry_out(state, events, replica.latest_at)
            log.sync(self._record(log, state, made))
        event = step(self._machine, replica.latest_at, is_asked=is_asked)
        if event is not None:
            log.sync(self._record(log, state, carry_out(state, [event], event.at)))
            # Should this process die here, the next one finds this event as the latest, and sets nothing again.
            replica.latest_at = event.at
            was, now = shown(event.from_at), shown(event.at)
            LOGGER.error("the clock of %s was %s; it is set to this machine's, %s", log.disk.where, was, now)
        log.anchor(replica.latest_at)

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
        """Append events that no call asked for."""
        position = log.append(events, state.format)
        self._expired += expirations(state, events)
        self._waiters.ends.observe(events)
        return position

    def _prune(self, log: Log, state: State) -> list[AnyEvent]:
        """W14: retention, a little with every few appends; while there is more to forget, twice what was appended. Of
        a large append as much as it has events, at most: a job's end is two of them at least."""
        appended = self._unpruned_events
        limit = max(PRUNE_LEAST, min(2 * appended, max(PRUNE_BATCH, appended)))
        self._unpruned_events = 0
        options = self._options
        surplus = len(state.finished) - options.retain_count
        is_time = self._is_behind or time.monotonic() - self._pruned_at_s >= PRUNE_EVERY_S
        if not options.does_maintenance or not (is_time or surplus >= PRUNE_BATCH):
            return []
        self._pruned_at_s = time.monotonic()
        now = self._now(log)
        before = now - int(options.retain_for_s * SECOND)
        events, count = run(state, c.Prune(before, options.retain_count, limit), now)
        self._is_behind = count == limit
        return events


def _require_room(log: Log, state: State, command: object) -> None:
    """W7: on a full disk, what adds jobs or gives them out is refused before it is decided."""
    match command:
        case c.Claim() if not log.space.has_room_to_finish(log.bytes_left, len(state.leases) + command.limit):
            raise log.space.no_space()
        case _ if isinstance(command, ADDING_JOBS):
            log.space.require_room_to_grow()
        case _:
            pass


def _takes_room(ticket: LogTicket) -> bool:
    """Whether a call has added jobs or given them out: its events may not use the reserve."""
    return ticket.error is None and isinstance(ticket.command, TAKING_ROOM)


def _acquire_queues(state: State, command: c.Acquire) -> list[str]:
    """The queues that this call may use with acquire: all but those used with claim."""
    names = {request.queue for request in command.requests}
    return [name for name in names if name not in state.queues or state.queues[name].mode is not QueueMode.CLAIM]
