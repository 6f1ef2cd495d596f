"""`file:` the store over a log in a folder: a replica of the state in each process, and whoever holds the lock decides.

A call goes one way: store, pipeline (callers share an append and a sync), batch (decide under the lock), log, disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from leasemill.errors import LeasemillError, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.machine import check
from leasemill.store.base import DiskRoom, Store, Watch
from leasemill.store.file.access_keys import FolderKeys
from leasemill.store.file.batch import BatchRunner
from leasemill.store.file.clock import Machine, RealMachine
from leasemill.store.file.disk import Disk, unavailable
from leasemill.store.file.options import FileOptions, parse_folder_url
from leasemill.store.file.replica import Replica
from leasemill.store.file.tickets import LogTicket
from leasemill.store.file.waiters import FolderWaiters
from leasemill.store.file.watch import FolderWatch
from leasemill.store.notifications import Subscription
from leasemill.store.pipeline import Pipeline
from leasemill.store.presence import FolderPresence
from leasemill.store.readings import Pulse
from leasemill.store.system import Clock, Entropy
from leasemill.store.threads import start_over_in_children

AnswerT = TypeVar("AnswerT")


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
        super().__init__(entropy, has_test_clock=clock is not None)
        self._path = Path(path)
        self.name = f"file:{self._path.absolute()}"
        options, machine = options or FileOptions(), machine or RealMachine()
        self.presence = FolderPresence(
            self._path, lambda: machine.since_boot_ns() // 1_000, self.order, self._give_up_block
        )
        self.keys = FolderKeys(self._path)
        self._waiters = FolderWaiters(self._path, self._catch_up)
        self._replica = Replica(self._path, options, machine, disk, self._waiters.ends)
        self._runner = BatchRunner(self._path, options, machine, clock, self._replica, self._waiters, self.expiries)
        self._pipeline = Pipeline(self._runner.run, f"leasemill {self._path}")
        try:
            self._replica.open(may_create=True)
        except OSError as error:
            raise unavailable(self._path, error) from error
        start_over_in_children(self)

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        check(command)
        answer: AnswerT = self._pipeline.run(LogTicket(command))
        return answer

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        check(command)
        answer: AnswerT = await self._pipeline.arun(LogTicket(command))
        return answer

    async def ack_and_claim(self, ack: c.Ack, claim: c.Claim) -> tuple[list[c.AckOutcome], list[c.Lease] | None]:
        """Carry out both in one append."""
        check(ack)
        check(claim)
        acking, claiming = LogTicket(ack), LogTicket(claim)
        await self._pipeline.arun_together(acking, claiming)
        if acking.error is not None:
            raise acking.error
        return acking.answer, None if claiming.error is not None else claiming.answer

    def set_clock(self) -> int:
        """W17: set the folder's clock to the machine's. Leases keep the time they have left."""
        now: int = self._pipeline.run(LogTicket(c.GetTime(), sets_clock=True))
        return now

    def watch(self, queues: Sequence[str]) -> Watch:
        return FolderWatch(self._path, self._pipeline, c.DueIn(tuple(queues)))

    def watch_end(self, job_id: str) -> Watch:
        return self._waiters.ends.watch(job_id)

    def watch_cancellations(self, wake: Callable[[], None]) -> Subscription:
        return self._waiters.cancellations.call(wake)

    def close(self) -> None:
        self._runner.is_closed = True
        self._waiters.close()
        with suppress(Unavailable):
            self._pipeline.run(LogTicket(c.GetTotals()))  # closes the log when no other caller uses it
        self._pipeline.close()

    def keep_up(self, within_s: float | None = None) -> Pulse | None:
        pulse: Pulse | None = self._pipeline.run(LogTicket(None, is_durable=False, within_s=within_s))
        return pulse

    def room(self) -> DiskRoom:
        try:
            log = self._replica.opened_log()
            log.measure_room()
            return log.space.room()
        except OSError as error:
            raise unavailable(self._path, error) from error

    def _give_up_block(self) -> bool:
        log = self._replica.log
        return log is not None and log.space.give_up_block()

    def _catch_up(self) -> None:
        """Catch up, and no more: the waiters for the ends that are found are woken."""
        try:
            self.keep_up()
        except LeasemillError:
            self._waiters.ends.notify_all()  # they will learn why from their own call

    def after_fork(self) -> None:
        """Close the parent's descriptors in a forked child, and unlock nothing (W12). The child opens its own."""
        self._pipeline.reset()
        self._waiters.reset()
        self._runner.maintenance.reset()
        self._replica.close()


def open_folder(url: str) -> FileStore:
    """Open the store that `file:PATH?option=value` names."""
    path, options = parse_folder_url(url)
    return FileStore(path, options=options)
