"""`file:` the Store over a log: a replica of the state in each process, and whoever holds the lock decides.

To act: catch up, take the lock, read what others appended last, decide, append, unlock, sync, answer. Every answer
waits until the log is synced up to the position it was decided at (W1). A replica that may be ahead of the log is
thrown away. Adds no rule of queueing of its own.
"""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar, cast

from leasemill.errors import Broken, LeasemillError, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.events import AnyEvent, JobEnqueued
from leasemill.kernel.machine import apply_all, check, run
from leasemill.kernel.model import SECOND, QueueMode
from leasemill.kernel.state import State
from leasemill.kernel.verbs.cancel import cancels_a_run
from leasemill.kernel.verbs.expire import expire_regardless
from leasemill.store.base import Store, Watch
from leasemill.store.ends import Subscription
from leasemill.store.presence import FolderPresence
from leasemill.store.sources import Clock, Entropy
from leasemill.store.wal.clock import Machine, RealMachine
from leasemill.store.wal.disk import Disk, RealDisk, unavailable
from leasemill.store.wal.log import LockTimeout, Log, Superseded
from leasemill.store.wal.lookout import Lookout
from leasemill.store.wal.manifest import Snapshot
from leasemill.store.wal.options import FileOptions, parse_folder_url
from leasemill.store.wal.pipeline import Pipeline, Ticket
from leasemill.store.wal.snapshot import read_snapshot
from leasemill.store.wal.watch import FolderWatch

LOGGER: Final = logging.getLogger("leasemill.wal")
AnswerT = TypeVar("AnswerT")
SUPERSEDED_TRIES: Final = 20
PRUNE_EVERY_S: Final = 5.0
PRUNE_BATCH: Final = 2_000
SNAPSHOT_PAUSE_S: Final = 10.0
EXPIRE_BATCH: Final = 1_000
READS: Final = (c.GetJob, c.ListJobs, c.ListQueues, c.GetLane, c.ListLanes, c.ListActions, c.GetTotals, c.DueIn)


class FileStore(Store):
    """A folder's jobs. Threads, event loops and forked children may use one object."""

    def __init__(
        self,
        path: str | Path,
        *,
        options: FileOptions | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        disk: Disk | None = None,
        machine: Machine | None = None,
    ) -> None:
        super().__init__(entropy)
        self._path = Path(path)
        self.name = f"file:{self._path.absolute()}"
        self._machine = machine or RealMachine()
        self.presence = FolderPresence(self._path, self._machine.since_boot_us)
        self._options = options or FileOptions()
        self._given_clock = clock
        self._given_disk = disk
        self._log: Log | None = None
        self._state: State | None = None
        self._latest_at = 0
        self._expired: list[c.Expiration] = []
        self._is_settled = False
        self._pruned_at_s = time.monotonic()
        self._snapshotting: subprocess.Popen[bytes] | None = None
        self._snapshotting_since_s = -SNAPSHOT_PAUSE_S
        self._is_closed = False
        self._pipeline = Pipeline(self._carry_out, f"leasemill {self._path}")
        self._lookout = Lookout(self._path, self._see_others)
        try:
            self._open_log(may_found=True)
        except OSError as error:
            raise unavailable(self._path, error) from error
        _OPEN.add(self)

    # The store's methods

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        check(command)
        return cast(AnswerT, self._pipeline.run(Ticket(command)))

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        check(command)
        return cast(AnswerT, await self._pipeline.arun(Ticket(command)))

    def watch(self, queues: Sequence[str]) -> Watch:
        return FolderWatch(self._path, self._pipeline, c.DueIn(tuple(queues)))

    def watch_end(self, job_id: str) -> Watch:
        return self._lookout.ends.watch(job_id)

    def watch_cancellations(self, wake: Callable[[], None]) -> Subscription:
        return self._lookout.cancellations.call(wake)

    def close(self) -> None:
        self._is_closed = True
        self._lookout.close()
        with suppress(Unavailable):
            self._pipeline.run(Ticket(c.GetTotals()))  # lets go of the log when no other caller uses it
        self._pipeline.close()
        _OPEN.discard(self)

    # Carrying out

    def _carry_out(self, tickets: list[Ticket]) -> None:
        """Decide, append and sync for all of them at once; each gets its answer or its error."""
        try:
            self._refuse_if_closed()
            position = self._decided(tickets)
            if self._expired or any(ticket.is_durable for ticket in tickets):
                self._opened_log().sync(position)
        except LockTimeout as error:
            for ticket in tickets:
                ticket.fail(error)
        except LeasemillError as error:
            self._fail(tickets, error)
        except OSError as error:
            self._fail(tickets, unavailable(self._path, error))
            self._drop_log()
        except BaseException as error:
            self._fail(tickets, Unavailable(f"interrupted by {type(error).__name__}; repeat the call"))
            raise
        else:
            self._notify_expired()
            self._maintain()

    def _notify_expired(self) -> None:
        expired, self._expired = self._expired, []
        self.expiries.notify(expired)

    def _fail(self, tickets: list[Ticket], error: LeasemillError) -> None:
        self._state, self._expired = None, []  # they may be ahead of the log
        self._is_settled = False
        if self._log is not None and self._given_disk is None and not self._log.is_there:
            self._drop_log()
        for ticket in tickets:
            ticket.fail(error)

    def _decided(self, tickets: list[Ticket]) -> int:
        """Where in the log the answers were decided."""
        for _ in range(SUPERSEDED_TRIES):
            try:
                return self._decided_once(self._opened_log(), tickets)
            except Superseded:
                self._state = None
                self._opened_log().forget()
        raise Unavailable(
            f"the log in {self._path} changed {SUPERSEDED_TRIES} times while it was read; repeat the call"
        )

    def _decided_once(self, log: Log, tickets: list[Ticket]) -> int:
        if self._state is None and _are_new_jobs(tickets) and not log.is_new_boot:
            position = self._enqueued_blind(log, tickets)
            if position is not None:
                return position
        if self._state is None:
            self._load(log)
        log.check_generation()
        self._catch_up(log)
        if all(ticket.command is None for ticket in tickets):
            return log.position
        are_reads = all(isinstance(ticket.command, READS) for ticket in tickets)
        if are_reads and log.is_caught_up and not self._has_overdue():
            self._run_all(tickets)
            return log.position
        with log.locked(meanwhile=lambda: self._catch_up(log)):
            return self._decided_under_lock(log, tickets)

    def _decided_under_lock(self, log: Log, tickets: list[Ticket]) -> int:
        log.check()
        self._catch_up(log)
        self._end_other_boots(log)
        self._list_acquire_queues(log)
        if not any(isinstance(ticket.command, c.Expire) for ticket in tickets):
            self._expire_overdue(log)
        events = self._run_all(tickets)
        assert self._state is not None
        self._expired += self.expiries.found(self._state, events)
        events += self._pruned()
        if not events:
            return log.position
        position = log.append(events)
        self._lookout.ends.observe(events)
        if _are_cancelling(tickets) and cancels_a_run(self._state, events):
            self._lookout.announce_cancellation()
        return position

    def _run_all(self, tickets: list[Ticket]) -> list[AnyEvent]:
        assert self._state is not None
        now = self._now()
        events: list[AnyEvent] = []
        for ticket in tickets:
            if ticket.command is None:
                continue
            try:
                self._prepare(self._opened_log(), ticket)
                made, ticket.answer = run(self._state, ticket.command, now)
            except LeasemillError as error:
                ticket.error = error  # refused before anything was applied
            else:
                events += made
        return events

    def _prepare(self, log: Log, ticket: Ticket) -> None:
        """What a command needs of the folder before it is decided; refuses it where that is not to be had."""
        assert self._state is not None
        log.require_weight(ticket.weight)
        command = ticket.command
        match command:
            case c.Enqueue():
                log.require_room_to_grow()
            case c.Acquire():
                log.require_room_to_grow()
                names = {request.queue for request in command.requests}
                log.list_acquired([name for name in names if _mode(self._state, name) is not QueueMode.CLAIM])
            case c.Claim():
                log.require_room_to_finish(len(self._state.leases) + command.limit)
            case _:
                pass

    def _list_acquire_queues(self, log: Log) -> None:
        """W9: a folder of a version that did not list them, listed by the first process that has read it."""
        if log.knows_acquire_queues():
            return
        assert self._state is not None
        with suppress(Unavailable):  # no space: they stay unlisted, and nothing is appended unread
            log.list_acquired([queue.name for queue in self._state.queues.values() if queue.mode is QueueMode.ACQUIRE])

    def _enqueued_blind(self, log: Log, tickets: list[Ticket]) -> int | None:
        """W9: jobs with new ids need no replica: they are appended as they are. None: one of their queues may be
        used with acquire (I7), which takes a replica to decide."""
        log.require_room_to_grow()
        with log.locked():
            log.check()
            log.skip_to_tail()
            for _ in log.read_new():
                pass  # of a process that died before it told how far it wrote
            if log.may_be_acquired({job.queue for ticket in tickets for job in ticket.command.jobs}):
                return None
            now = self._now()
            events: list[AnyEvent] = []
            for ticket in tickets:
                events += [JobEnqueued(job, now) for job in ticket.command.jobs]
                ticket.answer = [c.Enqueued(job.id) for job in ticket.command.jobs]
            return log.append(events) if events else log.position

    # The replica

    def _load(self, log: Log) -> None:
        """The state from the latest snapshot on; the rest is read by catching up."""
        collects = gc.isenabled()
        gc.disable()  # millions of new objects, none of them garbage
        try:
            snapshot = log.begin()
            self._state, self._latest_at = (State(), 0) if snapshot is None else self._read(log, snapshot)
            self._catch_up(log)
            self._lookout.ends.notify_all()  # what ended before the snapshot was taken is in no event
        finally:
            if collects:
                gc.enable()

    def _read(self, log: Log, snapshot: Snapshot) -> tuple[State, int]:
        try:
            return read_snapshot(self._disk, snapshot)
        except FileNotFoundError:
            log.refresh()
            if log.manifest.snapshot != snapshot:
                raise Superseded from None  # W8: a newer one has taken its place
            raise Broken(f"{snapshot.name} is missing from {self._path}; restore the folder from a backup") from None

    def _catch_up(self, log: Log) -> bool:
        """Apply what others appended; tells whether there was anything."""
        state = self._state
        assert state is not None
        before = log.position
        for frame in log.read_new():
            events = frame.events()
            apply_all(state, events)
            self._lookout.ends.observe(events)
            if events:
                self._latest_at = events[-1].at
        return log.position > before

    def _end_other_boots(self, log: Log) -> None:
        """W10: no process outlived the boot its lease was granted in."""
        if not log.is_still_new_boot():
            return
        assert self._state is not None
        while True:
            events = expire_regardless(self._state, EXPIRE_BATCH, self._latest_at)
            if not events:
                break
            apply_all(self._state, events)
            log.sync(log.append(events))
            self._expired += self.expiries.found(self._state, events)
            self._lookout.ends.observe(events)
        log.anchor(self._latest_at)

    def _has_overdue(self) -> bool:
        """W15: whether leases expired before this process first looked, and nobody has recorded it."""
        if self._is_settled:
            return False
        assert self._state is not None
        self._is_settled = not self._state.leases.first(1, self._now())
        return not self._is_settled

    def _expire_overdue(self, log: Log) -> None:
        """W15: what time decided while nobody looked is on record before the first answer."""
        assert self._state is not None
        while self._has_overdue() and log.has_room_to_finish(len(self._state.leases)):
            events, _ = run(self._state, c.Expire(EXPIRE_BATCH), self._now())
            log.append(events)
            self._expired += self.expiries.found(self._state, events)
            self._lookout.ends.observe(events)

    def _now(self) -> int:
        if self._given_clock is not None:
            return self._given_clock.now()
        return self._machine.since_boot_us() + self._opened_log().clock.offset_us

    def _see_others(self) -> None:
        """Catch up, and no more: whoever waits for an end that is found is woken."""
        try:
            self._pipeline.run(Ticket(None, is_durable=False))
        except LeasemillError:
            self._lookout.ends.notify_all()  # they will learn why from their own call

    # Keeping the folder in order

    def _pruned(self) -> list[AnyEvent]:
        """Retention, a little with every few appends."""
        state, options = self._state, self._options
        if state is None or not options.does_maintenance:
            return []
        surplus = len(state.finished) - options.retain_count
        if surplus < PRUNE_BATCH and time.monotonic() - self._pruned_at_s < PRUNE_EVERY_S:
            return []
        self._pruned_at_s = time.monotonic()
        before = self._now() - int(options.retain_for_s * SECOND)
        events, _ = run(state, c.Prune(before, options.retain_count, PRUNE_BATCH), self._now())
        return events

    def _maintain(self) -> None:
        log, options = self._log, self._options
        if log is None or not options.does_maintenance:
            return
        if log.should_prepare_spare():
            threading.Thread(target=_prepare_spare, args=(log,), daemon=True).start()
        if self._state is not None and log.sealed_bytes >= options.snapshot_bytes and self._may_snapshot(log):
            self._snapshotting_since_s = time.monotonic()
            self._snapshotting = subprocess.Popen(
                [sys.executable, "-m", "leasemill.store.wal.build", str(self._path.resolve())]
                + (["--keep-segments"] if options.keep_segments else []),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            # Waited for even when this store is closed meanwhile: no ended process is left unclaimed.
            threading.Thread(target=_report_builder, args=(self._snapshotting, self._path), daemon=True).start()

    def _may_snapshot(self, log: Log) -> bool:
        """One at a time, not too often, and only if no other process has taken it meanwhile."""
        if time.monotonic() - self._snapshotting_since_s < SNAPSHOT_PAUSE_S or self._is_snapshotting():
            return False
        log.refresh()
        return log.sealed_bytes >= self._options.snapshot_bytes

    def _is_snapshotting(self) -> bool:
        return self._snapshotting is not None and self._snapshotting.poll() is None

    # Opening

    def _open_log(self, *, may_found: bool) -> Log:
        self._disk = self._given_disk or RealDisk(self._path, may_make=may_found)
        self._log = Log(
            self._disk,
            self._machine,
            segment_bytes=self._options.segment_bytes,
            lock_timeout_s=self._options.lock_timeout_s,
            may_found=may_found,
        )
        return self._log

    def _opened_log(self) -> Log:
        return self._log or self._open_log(may_found=False)

    def _drop_log(self) -> None:
        self._state = None
        self._is_settled = False
        if self._log is not None:
            self._log.close()
            self._log = None

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            self._drop_log()
            raise Unavailable(f"the store {self._path} is closed; open it again")

    def _after_fork(self) -> None:
        """W12: a child has its own locks and descriptors; the parent's are closed, and nothing is unlocked."""
        self._pipeline.reset()
        self._lookout.reset()
        self._snapshotting = None
        self._drop_log()


def open_folder(url: str) -> FileStore:
    """The store that `file:PATH?option=value` names."""
    path, options = parse_folder_url(url)
    return FileStore(path, options=options)


def _mode(state: State, name: str) -> QueueMode | None:
    queue = state.queues.get(name)
    return None if queue is None else queue.mode


def _are_new_jobs(tickets: list[Ticket]) -> bool:
    return all(isinstance(ticket.command, c.Enqueue) and ticket.command.are_new for ticket in tickets)


def _are_cancelling(tickets: list[Ticket]) -> bool:
    return any(isinstance(ticket.command, c.Cancel) for ticket in tickets)


def _prepare_spare(log: Log) -> None:
    try:
        log.prepare_spare()
    except (OSError, ValueError):
        LOGGER.warning("the next segment could not be prepared; it is made when it is needed", exc_info=True)


def _report_builder(builder: subprocess.Popen[bytes], path: Path) -> None:
    """Wait for a snapshot's builder; one that failed is followed by another, which removes what it left."""
    _, errors = builder.communicate()
    if builder.returncode:
        last_line = errors.decode(errors="replace").strip().rpartition("\n")[2]
        LOGGER.warning(
            "the snapshot of %s failed (exit code %d: %s); it is tried again",
            path,
            builder.returncode,
            last_line or "no message",
        )


_OPEN: Final[weakref.WeakSet[FileStore]] = weakref.WeakSet()


def _reopen_in_child() -> None:
    for store in list(_OPEN):
        store._after_fork()


os.register_at_fork(after_in_child=_reopen_in_child)
