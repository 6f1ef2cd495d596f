"""Deposits to accounts, one lane each: an app whose effects can be audited, and the audit.

Every deposit commits one entry, as its result and as a follow-up job that books it, and leaves marks outside the
boundary. The audit compares the store's records, the entries and the marks; it takes nothing for granted, not even
that what was meant to disturb the workers did.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import msgspec
from msgspec import Struct

from leasemill.api.app import App
from leasemill.api.context import Context
from leasemill.api.job import Call
from leasemill.demo.trail import Mark, Trail, What
from leasemill.errors import LeaseLost
from leasemill.kernel import commands as c
from leasemill.kernel.decide import followup_id
from leasemill.kernel.model import AbortReason, Execution, Job, JobState, Refusal, Verb
from leasemill.store.base import Store

WORK_VARIABLE: Final = "LEASEMILL_DEMO_WORK_S"
LEASE_S: Final = 2.0
DEPOSITS: Final = "deposits"
LEDGER: Final = "ledger"
PAGE: Final = 1_000

app = App()


class Entry(Struct, frozen=True):
    """One line of the ledger."""

    account: str
    number: int
    cents: int


@app.job(queue=DEPOSITS, lane="account", lease=LEASE_S)
def deposit(ctx: Context, account: str, number: int, cents: int) -> Entry:
    trail = Trail.of_process()
    trail.leave("began", ctx)
    time.sleep(float(os.environ[WORK_VARIABLE]))
    entry = Entry(account, number, cents)
    came_to: What = "failed"
    try:
        with ctx.commit() as tx:
            tx.set_result(entry)
            tx.enqueue(book, entry)
        came_to = "committed"
    except LeaseLost:
        came_to = "refused"
        raise
    finally:
        trail.leave(came_to, ctx)
    return entry


@app.job(queue=LEDGER, lease=LEASE_S)
async def book(entry: Entry) -> Entry:
    return entry


def deposits(jobs: int, lanes: int) -> dict[str, Entry]:
    """What is to be in the ledger in the end, by the id of the job that brings it; in the order of enqueuing."""
    entries = (Entry(f"account-{it % lanes:02}", it // lanes, 100 + it) for it in range(jobs))
    return {f"deposit-{entry.account}-{entry.number:05}": entry for entry in entries}


def calls(entries: Mapping[str, Entry]) -> Iterator[Call[Entry]]:
    for job_id, entry in entries.items():
        yield deposit.options(job_id=job_id).call(entry.account, entry.number, entry.cents)


# The audit -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What was done to the workers, by whoever did it."""

    killed: str
    killed_at: float
    stopped: str
    exit_codes: Mapping[str, int]
    """Of the workers that were asked to end."""
    trouble: str | None = None
    """Why it did not come to its end."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the audit. `holds` is None for what is only told."""

    name: str
    told: str
    holds: bool | None
    wrong: tuple[str, ...] = ()
    """Examples of what is wrong."""


@dataclass(slots=True)
class Audit:
    """Everything that can be said afterwards, from the records and the marks alone."""

    jobs: int
    succeeded: int
    handler_runs: int
    effects_once: int
    effects_missing: int
    effects_doubled: int
    lanes: int
    lanes_in_order: int
    leases_expired: dict[str, int]
    late_reports_refused: dict[str, int]
    ran_again_s: list[float]
    findings: list[Finding] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return all(finding.holds is not False for finding in self.findings)


def audit(store: Store, entries: Mapping[str, Entry], trail: Trail, disturbance: Disturbance) -> Audit:
    jobs = {job.spec.id: job for job in _all_jobs(store)}
    marks = trail.marks()
    known = [jobs[job_id] for job_id in entries if job_id in jobs]
    effects = {
        job_id: _effects(jobs, job_id, entry, marks_of) for job_id, entry, marks_of in _with_marks(entries, marks)
    }
    in_order = _lanes_in_order(entries, jobs)
    expired = [execution for job in jobs.values() for execution in job.executions if _has_expired(execution)]
    refusals = [refusal for job in jobs.values() for refusal in job.refusals]
    result = Audit(
        jobs=len(entries),
        succeeded=sum(job.state is JobState.SUCCEEDED for job in known),
        handler_runs=sum(mark.what == "began" for mark in marks),
        effects_once=sum(count == 1 for count in effects.values()),
        effects_missing=sum(count == 0 for count in effects.values()),
        effects_doubled=sum(count > 1 for count in effects.values()),
        lanes=len(in_order),
        lanes_in_order=sum(in_order.values()),
        leases_expired=dict(Counter(execution.worker for execution in expired)),
        late_reports_refused=dict(Counter(refusal.verb.value for refusal in refusals)),
        ran_again_s=_ran_again_s(expired, marks, disturbance),
    )
    result.findings = [
        _of_jobs(result, entries, jobs),
        _of_runs(result, entries, jobs, marks),
        _of_effects(result, effects, entries, jobs, marks, disturbance),
        Finding("lanes", f"{result.lanes_in_order} of {result.lanes} in order", all(in_order.values())),
        _of_expired(result, disturbance),
        _of_refused(refusals, marks, disturbance),
        _of_recovery(result),
        _of_ends(disturbance),
    ]
    return result


def _all_jobs(store: Store) -> Iterator[Job]:
    after: int | None = 0
    while after is not None:
        page = store.jobs(c.JobFilter(), limit=PAGE, after=after)
        yield from page.jobs
        after = page.after


def _with_marks(entries: Mapping[str, Entry], marks: Iterable[Mark]) -> Iterator[tuple[str, Entry, list[Mark]]]:
    by_job: defaultdict[str, list[Mark]] = defaultdict(list)
    for mark in marks:
        by_job[mark.job].append(mark)
    for job_id, entry in entries.items():
        yield job_id, entry, by_job[job_id]


def _effects(jobs: Mapping[str, Job], job_id: str, entry: Entry, marks: list[Mark]) -> int:
    """How often a deposit took effect: as often as the most talkative witness says, and not at all unless all agree.

    The witnesses are the record (executions that committed), the handlers (told that their commit happened), and the
    entry itself, in the result and in the follow-up.
    """
    job, booking = jobs.get(job_id), jobs.get(followup_id(job_id, 0))
    if job is None or booking is None:
        return 0
    by_record = sum(execution.committed_at is not None for execution in job.executions)
    by_handlers = sum(mark.what == "committed" for mark in marks)
    is_as_meant = job.state is booking.state is JobState.SUCCEEDED and _entry(job) == entry and _entry(booking) == entry
    return max(by_record, by_handlers) if by_record and is_as_meant else 0


def _entry(job: Job) -> Entry | None:
    try:
        return msgspec.json.decode(job.result or b"", type=Entry)
    except msgspec.MsgspecError:
        return None


def _committed(job: Job | None) -> Execution | None:
    committed = () if job is None else (it for it in job.executions if it.committed_at is not None)
    return next(iter(committed), None)


def _has_expired(execution: Execution) -> bool:
    return execution.reason is AbortReason.EXPIRED or execution.ended_by is Verb.EXPIRE


def _lanes_in_order(entries: Mapping[str, Entry], jobs: Mapping[str, Job]) -> dict[str, bool]:
    """Per account: deposits committed, and their bookings were enqueued, in the order the deposits were."""
    committed: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for job_id, entry in entries.items():
        execution, booking = _committed(jobs.get(job_id)), jobs.get(followup_id(job_id, 0))
        fact = (-1, -1) if execution is None or booking is None else (execution.fence, booking.seq)
        committed[entry.account].append((entry.number, *fact))
    return {
        account: all(
            later[0] == earlier[0] + 1 and later[1] > earlier[1] >= 0 and later[2] > earlier[2] >= 0
            for earlier, later in pairwise(facts)
        )
        for account, facts in committed.items()
    }


def _ran_again_s(expired: Iterable[Execution], marks: Iterable[Mark], disturbance: Disturbance) -> list[float]:
    """For each job the killed worker left behind: how long after the kill another handler began it."""
    left = {(it.job_id, it.attempt + 1) for it in expired if it.worker == disturbance.killed}
    began = {(mark.job, mark.attempt): mark.at for mark in marks if mark.what == "began"}
    return sorted(began[run] - disturbance.killed_at for run in left & began.keys())


# Its lines -----------------------------------------------------------------------------------------------------


def _of_jobs(audit: Audit, entries: Mapping[str, Entry], jobs: Mapping[str, Job]) -> Finding:
    wrong = [job_id for job_id in entries if job_id not in jobs or jobs[job_id].state is not JobState.SUCCEEDED]
    return Finding(
        "jobs", f"{audit.jobs:,} in {audit.lanes} lanes, {audit.succeeded:,} succeeded", not wrong, tuple(wrong)
    )


def _of_runs(audit: Audit, entries: Mapping[str, Entry], jobs: Mapping[str, Job], marks: list[Mark]) -> Finding:
    """Every run is on record, once."""
    on_record = {
        (job_id, execution.attempt, execution.worker)
        for job_id in entries
        if job_id in jobs
        for execution in jobs[job_id].executions
    }
    runs = Counter((mark.job, mark.attempt, mark.worker) for mark in marks if mark.what == "began")
    wrong = [f"{run}: {count} times" for run, count in runs.items() if count > 1 or run not in on_record]
    more = audit.handler_runs - audit.jobs
    return Finding(
        "handler runs", f"{audit.handler_runs:,}, each on record; {more} more than jobs", not wrong, tuple(wrong)
    )


def _of_effects(
    audit: Audit,
    effects: Mapping[str, int],
    entries: Mapping[str, Entry],
    jobs: Mapping[str, Job],
    marks: Iterable[Mark],
    disturbance: Disturbance,
) -> Finding:
    wrong = [f"{job_id}: {count} times" for job_id, count in effects.items() if count != 1]
    expected = {followup_id(job_id, 0) for job_id in entries}
    wrong += [
        f"{job.spec.id}: not in the ledger"
        for job in jobs.values()
        if job.spec.queue == LEDGER and job.spec.id not in expected
    ]
    wrong += _untold(entries, jobs, marks, disturbance)
    told = (
        f"{audit.effects_once:,} applied exactly once, {audit.effects_doubled} doubled, {audit.effects_missing} missing"
    )
    return Finding("effects", told, not wrong, tuple(wrong))


def _untold(
    entries: Mapping[str, Entry], jobs: Mapping[str, Job], marks: Iterable[Mark], disturbance: Disturbance
) -> list[str]:
    """The run that was told of its commit is the one on record; only who died in between was not told."""
    told = {mark.job: (mark.attempt, mark.worker) for mark in marks if mark.what == "committed"}
    wrong = []
    for job_id in entries:
        execution = _committed(jobs.get(job_id))
        if execution is None or told.get(job_id) == (execution.attempt, execution.worker):
            continue
        if job_id in told or execution.worker != disturbance.killed:
            wrong.append(f"{job_id}: on record is {execution.worker}, told was {told.get(job_id)}")
    return wrong


def _of_expired(audit: Audit, disturbance: Disturbance) -> Finding:
    expired = audit.leases_expired
    killed, stopped = expired.get(disturbance.killed, 0), expired.get(disturbance.stopped, 0)
    told = f"{sum(expired.values())}: {killed} of the killed worker, {stopped} of the stopped one"
    return Finding("leases expired", told, killed > 0 and stopped > 0)


def _of_refused(refusals: list[Refusal], marks: Iterable[Mark], disturbance: Disturbance) -> Finding:
    """The stopped worker did try to commit late; each handler that was refused is on record, and nobody else is."""
    by_verb = Counter(refusal.verb.value for refusal in refusals)
    on_record = sorted(
        (refusal.worker or "", refusal.attempt or 0) for refusal in refusals if refusal.verb is Verb.COMMIT
    )
    told = sorted((mark.worker, mark.attempt) for mark in marks if mark.what == "refused")
    holds = on_record == told and any(worker == disturbance.stopped for worker, _ in told)
    verbs = ", ".join(f"{count} {verb}" for verb, count in sorted(by_verb.items())) or "none"
    return Finding("late reports refused", f"{by_verb.total()}: {verbs}", holds)


def _of_recovery(audit: Audit) -> Finding:
    times = audit.ran_again_s
    if not times:
        return Finding("after the kill", "no job of the killed worker ran again", False)
    told = f"its jobs ran again after {times[0]:.1f} to {times[-1]:.1f} s (lease {LEASE_S:g} s)"
    return Finding("after the kill", told, None)


def _of_ends(disturbance: Disturbance) -> Finding:
    wrong = [f"{worker}: {code}" for worker, code in disturbance.exit_codes.items() if code != 0]
    if disturbance.trouble is not None:
        return Finding("workers asked to end", "it did not come to that", False, (disturbance.trouble,))
    told = ", ".join(f"{worker} exit {code}" for worker, code in disturbance.exit_codes.items())
    return Finding("workers asked to end", told, not wrong, tuple(wrong))
