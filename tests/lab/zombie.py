"""Zombies: a worker that is stopped past its lease and then goes on as if nothing had happened.

Each run has two worker processes and one job. The first worker is stopped in the middle of the handler (SIGSTOP, never
while it holds the folder's lock), loses its lease, and is continued: when the other one has finished the job, while it
still runs it, or to report a failure late. The effect must be there once, and on record for the worker that held it.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from leasemill.api.app import App
from leasemill.api.context import Context
from leasemill.demo.trail import TRAIL_VARIABLE, Trail, What
from leasemill.errors import LeaseLost
from leasemill.kernel.model import Job, JobSpec, JobState
from leasemill.kernel.verbs.commit import followup_id
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from tests.lab.processes import IMPORT_PATH, TookTooLong, WorkerProcess, wait_until

LEASE_S: Final = 1.0
LIMIT_S: Final = 30.0
REPORT_LIMIT_S: Final = 5.0
RECEIPTS: Final = "zombie-receipts"
GATE_LOOK_S: Final = 0.003
STOPPED: Final = "stopped"
OTHER: Final = "other"

app = App()


class Variant(StrEnum):
    """What the world looks like when the stopped worker goes on."""

    FINISHED = "finished"
    """The other worker has finished the job."""
    RUNNING = "running"
    """The other worker is in the middle of it."""
    FAILURE = "failure"
    """The stopped worker reports a failure; the other has finished in every second run, else it is running."""


# The jobs ------------------------------------------------------------------------------------------------------


@app.job(lease=LEASE_S, timeout=10 * LIMIT_S)
def pays(ctx: Context, amount: int) -> str:
    """In a thread, which nobody can cancel: whatever the worker knows by then, it does try to commit."""
    trail = Trail.of_process()
    trail.leave("began", ctx)
    came_to: What = "failed"
    try:
        _await_gate(trail, ctx)
        with ctx.commit() as tx:
            tx.set_result(ctx.worker)
            tx.enqueue(receipt, amount)
        came_to = "committed"
    except LeaseLost:
        came_to = "refused"
        raise
    finally:
        trail.leave(came_to, ctx)
    return ctx.worker


@app.job(lease=LEASE_S, timeout=10 * LIMIT_S)
async def pays_or_fails(ctx: Context, amount: int) -> str:
    """On the event loop, which it blocks: its worker cannot learn of the loss before the failure is reported."""
    trail = Trail.of_process()
    trail.leave("began", ctx)
    _await_gate(trail, ctx)
    if ctx.attempt == 1:
        trail.leave("failed", ctx)
        raise RuntimeError("it did not work")
    async with ctx.commit() as tx:
        tx.set_result(ctx.worker)
        tx.enqueue(receipt, amount)
    trail.leave("committed", ctx)
    return ctx.worker


@app.job(queue=RECEIPTS)
async def receipt(amount: int) -> int:
    await asyncio.sleep(0)
    return amount


def _await_gate(trail: Trail, ctx: Context) -> None:
    gate = _gate(trail, ctx.worker)
    while not gate.exists():
        time.sleep(GATE_LOOK_S)


def _gate(trail: Trail, worker: str) -> Path:
    return trail.path.with_name(f"{worker}.gate")


# A run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one run."""

    variant: Variant
    job: str
    effects: int
    refused: tuple[str, ...]
    """Store of the stopped worker's reports that are on record as refused."""
    attempt: int
    worker: str
    """Which one is on record as the one whose commit counts: the stopped or the other."""
    wrong: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        return not self.wrong


@dataclass(frozen=True, slots=True)
class Stage:
    """Where runs take place: a store, and a folder for logs and marks."""

    url: str
    store: Store
    folder: Path

    def play(self, variant: Variant, number: int) -> Run:
        """One run from beginning to end. Any number may go on at the same time."""
        job_id = f"zombie-{variant}-{number}-{self.store.entropy.new_id()}"
        folder = self.folder / job_id
        folder.mkdir()
        trail = Trail(folder / "trail")
        kind = pays_or_fails.kind if variant is Variant.FAILURE else pays.kind
        self.store.enqueue([JobSpec(job_id, job_id, kind, msgspec.json.encode({"amount": number}))])
        with self._worker(folder, STOPPED, [job_id]) as stopped:
            wait_until(lambda: trail.marks("began"), "the first worker to begin", LIMIT_S)
            stopped.stop(lambda: trail.unfinished(stopped.id), LIMIT_S)
            with self._worker(folder, OTHER, [job_id, RECEIPTS]) as other:
                is_finished = variant is Variant.FINISHED or (variant is Variant.FAILURE and number % 2 == 0)
                if is_finished:
                    _gate(trail, other.id).touch()
                    self._await_success(job_id)
                else:
                    wait_until(lambda: trail.marks("began", worker=other.id), "the other worker to begin", LIMIT_S)
                _gate(trail, stopped.id).touch()
                stopped.resume()
                wait_until(lambda: not trail.unfinished(stopped.id), "the stopped worker to go on", LIMIT_S)
                wrong = [
                    *_missing(lambda: self._refused(job_id, stopped.id), "no refusal on record"),
                    *_missing(lambda: _has_logged_loss(stopped, job_id), "the stopped worker logged no loss"),
                ]
                _gate(trail, other.id).touch()
                self._await_success(job_id)
                self._await_success(followup_id(job_id, 0))
                exit_codes = (stopped.end(), other.end())
            return self._judged(variant, job_id, trail, stopped.id, other.id, exit_codes, wrong)

    def _worker(self, folder: Path, role: str, queues: Sequence[str]) -> WorkerProcess:
        return WorkerProcess(
            "tests.lab.zombie:app",
            url=self.url,
            log=folder / f"{role}.log",
            worker_id=f"{folder.name}-{role}",
            options=["--concurrency", "2", *(option for queue in queues for option in ("--queue", queue))],
            folder=folder,
            environment={TRAIL_VARIABLE: str(folder / "trail"), "PYTHONPATH": IMPORT_PATH},
        )

    def _job(self, job_id: str) -> Job | None:
        return self.store.job(job_id)

    def _await_success(self, job_id: str) -> None:
        def has_succeeded() -> bool:
            job = self._job(job_id)
            return job is not None and job.state is JobState.SUCCEEDED

        wait_until(has_succeeded, f"{job_id} to succeed", LIMIT_S)

    def _refused(self, job_id: str, worker: str) -> tuple[str, ...]:
        job = self._job(job_id)
        refusals = () if job is None else job.refusals
        return tuple(refusal.verb.value for refusal in refusals if refusal.worker == worker)

    def _judged(
        self,
        variant: Variant,
        job_id: str,
        trail: Trail,
        stopped: str,
        other: str,
        exit_codes: tuple[int, int],
        wrong: list[str],
    ) -> Run:
        job = self._job(job_id)
        assert job is not None
        committed = [execution for execution in job.executions if execution.committed_at is not None]
        returned = trail.marks("committed")
        has_receipt = self._job(followup_id(job_id, 0)) is not None
        effects = max(len(committed), len(returned)) if has_receipt else 0
        wrong += [
            sentence
            for sentence, is_so in {
                f"{effects} effects": effects != 1,
                f"on record is {[it.worker for it in committed]}": [it.worker for it in committed] != [other],
                f"the commit returned to {[mark.worker for mark in returned]}": [mark.worker for mark in returned]
                != [other],
                f"the result is {job.result!r}": job.result != msgspec.json.encode(other),
                f"{job.retries} retries": job.retries != 0,
                f"exit codes {exit_codes}": exit_codes != (0, 0),
            }.items()
            if is_so
        ]
        last = committed[-1] if committed else job.executions[-1]
        return Run(
            variant,
            job_id,
            effects,
            self._refused(job_id, stopped),
            last.attempt,
            OTHER if last.worker == other else STOPPED,
            tuple(wrong),
        )


def _missing(condition: Callable[[], object], sentence: str) -> list[str]:
    try:
        wait_until(condition, sentence, REPORT_LIMIT_S)
    except TookTooLong:
        return [sentence]
    return []


def _has_logged_loss(worker: WorkerProcess, job_id: str) -> bool:
    return worker.has_logged("lease lost", job=job_id) or worker.has_logged("lease not held", job=job_id)


# All runs ------------------------------------------------------------------------------------------------------


@contextmanager
def staged(url: str | None) -> Iterator[Stage]:
    """A stage on this store, or on one in a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="leasemill-zombie-"))
    where = url or f"file:{folder / 'jobs'}"
    store = open_store(where)
    try:
        yield Stage(where, store, folder)
    finally:
        store.close()
        shutil.rmtree(folder, ignore_errors=True)


def play_all(stage: Stage, variants: Iterable[Variant], runs: int, parallel: int) -> list[Run]:
    def play(variant: Variant, number: int) -> Run:
        try:
            return stage.play(variant, number)
        except TookTooLong as error:
            return Run(variant, f"{variant} {number}", 0, (), 0, "-", (str(error),))

    with ThreadPoolExecutor(parallel) as pool:
        try:
            futures = [pool.submit(play, variant, number) for number in range(runs) for variant in variants]
            return [future.result() for future in futures]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
