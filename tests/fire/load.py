"""Work under fire: producers that note what was acknowledged, worker processes, and the verdict over what is on record.

One producer enqueues through the store, another in transactions of its own together with an order of the same id. Each
account is a lane; a producer goes on to the next number only when the last one was acknowledged, and repeats a call
whose answer it did not hear. So what must be in the bank in the end is known to the cent.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import psycopg

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import Job, JobState
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from leasemill.store.postgres.driver.url import parse_url
from tests.fire import bank
from tests.lab.processes import IMPORT_PATH, TookTooLong, WorkerProcess, wait_until

ROOT = Path(__file__).resolve().parents[2]
ACCOUNTS = 5
PACE_S = 0.01
LONGEST_RECOVERY_S = 10.0
LONGEST_END_S = 90.0


@dataclass(slots=True)
class Verdict:
    """What a run came to."""

    runs: int = 0
    jobs: int = 0
    lost: int = 0
    doubled: int = 0
    refused: int = 0
    slowest_s: float | None = None
    wrong: list[str] = field(default_factory=list)
    not_run: str = ""
    """Why not, if this machine does not allow it."""

    def recovered_after(self, seconds: float) -> None:
        self.slowest_s = max(self.slowest_s or 0.0, seconds)
        if seconds > LONGEST_RECOVERY_S:
            self.wrong.append(f"it took {seconds:.1f} s to get back to work")


class Load:
    """A bank, two producers, some workers. `url` is how the workers reach the store, `direct` how the checker does."""

    def __init__(
        self, direct: str, folder: Path, *, url: str | None = None, environments: Sequence[Mapping[str, str]] = ({}, {})
    ) -> None:
        self.direct = direct
        self.url = url or direct
        self.folder = folder
        self.verdict = Verdict()
        self.workers: list[WorkerProcess] = []
        self._started = Counter[int]()
        self._environments = environments
        self._cleaning = ExitStack()
        self._acknowledged: set[str] = set()
        self._sent: set[str] = set()
        self._stops = threading.Event()
        self._troubles: list[BaseException] = []
        self._conninfo = parse_url(direct)[0]

    # Its life

    def __enter__(self) -> Self:
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            bank.open_accounts(connection, [*self._accounts("a"), *self._accounts("b")])
        self._cleaning.enter_context(bank.app.bound_to(self._cleaning.enter_context(open_store(self.url))))
        self.workers = [self.start_worker(number) for number in range(len(self._environments))]
        producers = [self._produce_by_store, self._produce_by_transaction]
        self._threads = [threading.Thread(target=self._produce, args=(one,)) for one in producers]
        for thread in self._threads:
            thread.start()
        try:
            self.await_effect(time.monotonic(), limit_s=30)
        except BaseException:
            self.__exit__()
            raise
        self.verdict.slowest_s = None
        return self

    def __exit__(self, *_: object) -> None:
        self._stops.set()
        for thread in self._threads:
            thread.join()
        self._cleaning.close()

    def start_worker(self, number: int) -> WorkerProcess:
        self._started[number] += 1
        name = f"worker-{number}-{self._started[number]}"
        worker = WorkerProcess(
            "tests.fire.bank:app",
            url=self.url,
            log=self.folder / f"{name}.log",
            worker_id=name,
            folder=self.folder,
            environment={"PYTHONPATH": IMPORT_PATH, **self._environments[number]},
        )
        return self._cleaning.enter_context(worker)

    def kill_worker(self, number: int) -> None:
        """With -9; another takes its place."""
        self.workers[number].kill()
        self.workers[number] = self.start_worker(number)

    # Waiting

    def serial(self) -> int:
        """Of the latest effect that is committed."""
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            row = connection.execute("select coalesce(max(serial), 0) from bank.entries").fetchone()
        assert row is not None
        return int(row[0])

    def await_effect(self, since: float, *, limit_s: float = 30.0) -> None:
        """Until something takes effect that had not by now; how long after `since` that is goes into the verdict."""
        before = self.serial()
        try:
            wait_until(lambda: self.serial() > before, "an effect", limit_s, every_s=0.02)
        except TookTooLong as error:
            logs = "".join(f"\n{worker.id}: {worker.log()[-600:]}" for worker in self.workers)
            raise TookTooLong(f"{error}; producers: {self._troubles}{logs}") from None
        self.verdict.recovered_after(time.monotonic() - since)

    def has_recovered(self) -> None:
        """One more fault is over, as of now, and work goes on."""
        self.await_effect(time.monotonic())
        self.verdict.runs += 1

    def finish(self, limit_s: float = LONGEST_END_S) -> Verdict:
        """No more is enqueued; everything ends; every worker exits when it is asked to; then the verdict."""
        self._stops.set()
        for thread in self._threads:
            thread.join()
        for trouble in self._troubles:
            self.verdict.wrong.append(f"a producer failed: {trouble!r}")
        with open_store(self.direct) as store:
            try:
                wait_until(lambda: not self._unfinished(store), "every job to end", limit_s, every_s=0.2)
            except TookTooLong as error:
                self.verdict.wrong.append(str(error))
                self.verdict.wrong += self._standing(store)
            for worker in self.workers:
                if worker.exit_code is None:
                    worker.await_started()  # one that was just started could not be asked to end
                if worker.exit_code is not None:
                    self.verdict.wrong.append(f"{worker.id} has exited with {worker.exit_code}: {worker.log()[-1500:]}")
                elif (code := worker.end()) != 0:
                    self.verdict.wrong.append(f"{worker.id} ended with {code} when it was asked to end")
            self._check(store)
        return self.verdict

    def _standing(self, store: Store) -> list[str]:
        """How jobs that have not ended stand, and what changed last: slow, or stuck?"""
        live = frozenset({JobState.READY, JobState.LEASED})
        jobs = store.jobs(c.JobFilter(states=live), limit=5).jobs
        latest = max((job.updated_at for job in store.jobs(limit=1_000, newest_first=True).jobs), default=0)
        return [f"the last change of any job was {time.time() - latest / 1e6:.1f} s ago"] + [
            f"{job.spec.id} is {job.state} in lane {job.spec.lane}: attempt {job.attempt}, "
            f"changed {time.time() - job.updated_at / 1e6:.1f} s ago, {job.executions[-1:]}"
            for job in jobs
        ]

    # Producing

    def _accounts(self, prefix: str) -> list[str]:
        return [f"{prefix}{number}" for number in range(ACCOUNTS)]

    def _produce(self, enqueue: Callable[[], None]) -> None:
        try:
            enqueue()
        except BaseException as error:  # noqa: BLE001  (reported in the verdict)
            self._troubles.append(error)

    def _numbers(self, prefix: str) -> Iterator[tuple[str, int]]:
        number = 0
        while not self._stops.is_set():
            number += 1
            for account in self._accounts(prefix):
                yield account, number
                self._stops.wait(PACE_S)

    def _produce_by_store(self) -> None:
        for account, number in self._numbers("a"):
            job_id = bank.job_id(account, number)
            call = bank.deposit.options(job_id=job_id).call(account, number, 100 + number)
            self._sent.add(job_id)
            while True:
                try:
                    bank.deposit.enqueue_many([call])
                except Unavailable:
                    if self._stops.wait(0.05):
                        return  # there may be no server any more
                else:
                    break
            self._acknowledged.add(job_id)

    def _produce_by_transaction(self) -> None:
        connection: psycopg.Connection[Any] | None = None
        for account, number in self._numbers("b"):
            job_id = bank.job_id(account, number)
            job = bank.deposit.options(job_id=job_id)
            self._sent.add(job_id)
            while True:
                try:
                    if connection is None or connection.closed:
                        connection = psycopg.connect(parse_url(self.url)[0])
                    with connection.transaction():
                        connection.execute(
                            "insert into bank.orders values (%s, %s, %s) on conflict do nothing",
                            [job_id, account, number],
                        )
                        job.using(connection).enqueue(account, number, 100 + number)
                except (psycopg.Error, Unavailable):
                    if connection is not None:
                        connection.close()
                    if self._stops.wait(0.05):
                        return
                else:
                    break
            self._acknowledged.add(job_id)
        if connection is not None:
            connection.close()

    # The verdict

    def _unfinished(self, store: Store) -> bool:
        try:
            return any(view.counts.get(state) for view in store.queues() for state in (JobState.READY, JobState.LEASED))
        except Unavailable:
            return True

    def _check(self, store: Store) -> None:
        verdict = self.verdict
        jobs = {job.spec.id: job for job in _all_jobs(store)}
        deposits = {job_id: job for job_id, job in jobs.items() if job.spec.queue == "deposits"}
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            entries = connection.execute(
                "select job, account, number, cents from bank.entries order by serial"
            ).fetchall()
            balances: dict[str, int] = dict(connection.execute("select name, cents from bank.accounts").fetchall())
            orders = {row[0] for row in connection.execute("select job from bank.orders")}
            receipts = Counter(row[0] for row in connection.execute("select job from bank.receipts"))
        applied = Counter(job for job, *_ in entries)
        verdict.jobs += len(jobs)
        verdict.refused += sum(len(job.refusals) for job in jobs.values())
        lost = {it for it in self._acknowledged if it not in deposits}
        lost |= {it for it, job in jobs.items() if job.state is not JobState.SUCCEEDED}
        lost |= {it for it in deposits if it not in applied}
        receipts_due = {job_id for job_id, job in jobs.items() if job.spec.queue == "receipts"}
        lost |= receipts_due - receipts.keys()
        verdict.lost += len(lost)
        doubled = [it for it, count in (applied + receipts).items() if count > 1]
        verdict.doubled += len(doubled)
        wrong = [f"lost: {it}" for it in sorted(lost)] + [f"doubled: {it}" for it in doubled]
        wrong += [f"unexpected: {it}" for it in sorted(deposits.keys() - self._sent)]
        wrong += [f"unexpected effect: {it}" for it in sorted(applied.keys() - deposits.keys())]
        if len(receipts_due) != len(deposits):
            wrong.append(f"{len(deposits)} deposits have {len(receipts_due)} receipts")
        by_transaction = {it for it in deposits if it.startswith("deposit-b")}
        wrong += [f"order without its job, or the other way round: {it}" for it in orders ^ by_transaction]
        wrong += _wrong_balances(entries, balances)
        wrong += [f"lane out of order: {account}" for account in _out_of_order(entries)]
        wrong += [sentence for job in jobs.values() for sentence in _wrong_history(job)]
        verdict.wrong += wrong


def _all_jobs(store: Store) -> Iterator[Job]:
    after: int | None = 0
    while after is not None:
        page = store.jobs(c.JobFilter(), limit=1_000, after=after)
        yield from page.jobs
        after = page.after


def _wrong_balances(entries: list[tuple[Any, ...]], balances: dict[str, int]) -> list[str]:
    due: Counter[str] = Counter()
    for _, account, _, cents in {entry[0]: entry for entry in entries}.values():
        due[account] += cents
    return [
        f"{account} has {cents} cents, {due[account]} are right"
        for account, cents in balances.items()
        if cents != due[account]
    ]


def _out_of_order(entries: list[tuple[Any, ...]]) -> list[str]:
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for _, account, number, _ in entries:
        numbers[account].append(number)
    return [account for account, seen in numbers.items() if seen != sorted(seen)]


def _wrong_history(job: Job) -> Iterator[str]:
    executions = sorted(job.executions, key=lambda one: one.attempt)
    if sum(one.committed_at is not None for one in executions) > 1:
        yield f"{job.spec.id} committed twice"
    for earlier, later in pairwise(executions):
        if later.fence <= earlier.fence:
            yield f"{job.spec.id}: fences do not rise"
        if (earlier.finished_at or later.leased_at + 1) > later.leased_at:
            yield f"{job.spec.id}: leases overlap"
