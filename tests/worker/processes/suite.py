"""What must hold of handlers in processes, on every store: the tests of each store call these."""

from __future__ import annotations

import msgspec
import pytest

from leasemill import Worker
from leasemill.kernel.model import AbortReason, Job, JobState
from leasemill.worker import pacing
from tests.worker.processes import jobs
from tests.worker.support import drained


def check_no_overlap(job: Job, attempts: int) -> None:
    began = [one for one in jobs.marks("began") if one.job_id == job.spec.id]
    assert [one.attempt for one in began] == list(range(1, attempts + 1))
    assert len({one.pid for one in began}) == attempts, "each in a process of its own"
    assert not jobs.marks("overlapped")


async def handlers_that_do_not_end_well(monkeypatch: pytest.MonkeyPatch) -> Worker:
    """One that never returns, one that ignores being stopped, one that crashes, one that takes all memory."""
    monkeypatch.setattr(pacing, "KILL_GRACE_S", 0.3)
    endless = jobs.never_returns.enqueue()
    stubborn = jobs.ignores_everything.enqueue()
    crashing = jobs.segfaults.enqueue()
    killed = jobs.killed_by_the_system.enqueue()
    hungry = jobs.eats_memory.enqueue()
    others = [job.enqueue() for job in (jobs.bystander, jobs.process_bystander) for _ in range(10)]

    worker = await drained(jobs.app, concurrency=3)

    assert [one.status() for one in others] == [JobState.SUCCEEDED] * 20

    record = endless.record()
    assert [run.reason for run in record.executions] == [AbortReason.FAILED] * 2
    assert "ran longer than its timeout of 0.3 s" in (record.executions[-1].error or "")
    check_no_overlap(record, 2)
    # The report of the first came when its process was gone: both attempts had their time to the full.
    assert record.state is JobState.FAILED

    assert stubborn.status() is JobState.FAILED
    assert [one.job_id for one in jobs.marks("ignored")] == [stubborn.id]

    record = crashing.record()
    assert record.state is JobState.DEAD
    assert [run.reason for run in record.executions] == [AbortReason.DIED] * 2
    assert [run.error for run in record.executions] == ["its process was killed by SIGSEGV"] * 2
    assert (record.expirations, record.retries) == (2, 0)
    check_no_overlap(record, 2)

    record = killed.record()
    assert record.state is JobState.DEAD
    assert record.executions[0].error == "its process was killed by SIGKILL (out of memory?)"
    check_no_overlap(record, 2)

    assert hungry.status() is JobState.FAILED
    assert (hungry.record().executions[0].error or "").startswith("MemoryError")
    assert (worker.metrics.timed_out, worker.metrics.died) == (3, 4)
    return worker


async def commits_from_a_process() -> None:
    sync, in_loop = jobs.commits.enqueue(7), jobs.commits_in_a_loop.enqueue(8)
    dying = jobs.commits_and_dies.enqueue()
    waiting = jobs.enqueues_and_waits.enqueue()
    own = jobs.bystander.enqueue()

    await drained(jobs.app, concurrency=2)

    for handle, amount in ((sync, 7), (in_loop, 8)):
        record = handle.record()
        assert record.state is JobState.SUCCEEDED
        result = msgspec.json.decode(record.result or b"null")
        assert result["amount"] == amount
        assert result["pid"] != own.result(timeout=0)
        assert jobs.app.handle(f"{handle.id}/0").result(timeout=0) == handle.id
    assert (dying.status(), dying.result(timeout=0)) == (JobState.SUCCEEDED, "done")
    assert dying.record().attempt == 1
    assert waiting.result(timeout=0) == "a handler"
