"""The demo's audit: the store's records, the ledger's entries and the handlers' marks are compared with each other.

It takes nothing for granted, not even that the workers that were to be killed and stopped were.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from leasemill.demo.ledger import DEPOSITS, LEASE_S, LEDGER, Entry
from leasemill.demo.trail import Mark, Trail
from leasemill.kernel import commands as c
from leasemill.kernel.model import AbortReason, Execution, Job, JobState, Verb
from leasemill.kernel.verbs.commit import followup_id
from leasemill.operator.listing import all_jobs
from leasemill.store.base import Store


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What was done to the workers."""

    killed: str
    killed_at: float
    stopped: str
    exit_codes: Mapping[str, int]
    """The exit codes of the workers that were asked to end."""
    trouble: str | None = None
    """The reason why the demo was cut short, if it was."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the audit. `holds` is None for what is reported without a verdict."""

    name: str
    text: str
    holds: bool | None
    wrong: tuple[str, ...] = ()
    """Examples of what is wrong."""


@dataclass(slots=True)
class Audit:
    """The result, in numbers and in lines."""

    jobs: int
    succeeded: int
    handler_runs: int
    effects_once: int
    effects_missing: int
    effects_doubled: int
    lanes: int
    lanes_in_order: int
    leases_expired: dict[str, int]
    leases_of_the_dead: dict[str, int]
    late_reports_refused: dict[str, int]
    ran_again_s: list[float]
    findings: list[Finding] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return all(finding.holds is not False for finding in self.findings)


def audit(store: Store, entries: Mapping[str, Entry], trail: Trail, disturbance: Disturbance) -> Audit:
    return _Evidence(entries, {job.spec.id: job for job in _all_jobs(store)}, trail.marks(), disturbance).audit()


def _all_jobs(store: Store) -> Iterator[Job]:
    """Yield the demo's jobs: the store may have others."""
    for queue in (DEPOSITS, LEDGER):
        yield from all_jobs(store, c.JobFilter(queue=queue))


@dataclass(frozen=True, slots=True)
class _Evidence:
    entries: Mapping[str, Entry]
    jobs: Mapping[str, Job]
    marks: list[Mark]
    disturbance: Disturbance

    def audit(self) -> Audit:
        committed = Counter(mark.job for mark in self.marks if mark.what == "committed")
        effects = {job_id: self._effects(job_id, committed[job_id]) for job_id in self.entries}
        in_order = self._lanes_in_order()
        expired = [execution for job in self.jobs.values() for execution in job.executions if _has_expired(execution)]
        died = [it for job in self.jobs.values() for it in job.executions if it.ended_by is Verb.DEATH]
        counts = Counter(effects.values())
        result = Audit(
            jobs=len(self.entries),
            succeeded=sum(self._has_succeeded(job_id) for job_id in self.entries),
            handler_runs=sum(mark.what == "began" for mark in self.marks),
            effects_once=counts[1],
            effects_missing=counts[0],
            effects_doubled=counts.total() - counts[1] - counts[0],
            lanes=len(in_order),
            lanes_in_order=sum(in_order.values()),
            leases_expired=dict(Counter(execution.worker for execution in expired)),
            leases_of_the_dead=dict(Counter(execution.worker for execution in died)),
            late_reports_refused=dict(
                Counter(refusal.verb.value for job in self.jobs.values() for refusal in job.refusals)
            ),
            ran_again_s=self._ran_again_s(expired + died),
        )
        result.findings = [
            self._about_jobs(result),
            self._about_runs(result),
            self._about_effects(result, effects),
            Finding("lanes", f"{result.lanes_in_order} of {result.lanes} in order", all(in_order.values())),
            self._about_expired(result),
            self._about_refused(result),
            _about_recovery(result),
            self._about_ends(),
        ]
        return result

    # Facts -------------------------------------------------------------------------------------------------------

    def _has_succeeded(self, job_id: str) -> bool:
        job = self.jobs.get(job_id)
        return job is not None and job.state is JobState.SUCCEEDED

    def _committed(self, job_id: str) -> Execution | None:
        job = self.jobs.get(job_id)
        committed = () if job is None else (it for it in job.executions if it.committed_at is not None)
        return next(iter(committed), None)

    def _effects(self, job_id: str, by_handlers: int) -> int:
        """Return how often a deposit took effect: the larger count of two witnesses, and 0 unless all of them agree.

        The witnesses are the record (executions that committed), the handlers (whose commit returned), and the entry
        itself, in the result and in the follow-up.
        """
        job, booking = self.jobs.get(job_id), self.jobs.get(followup_id(job_id, 0))
        if job is None or booking is None:
            return 0
        entry = self.entries[job_id]
        by_record = sum(execution.committed_at is not None for execution in job.executions)
        is_right = (
            job.state is booking.state is JobState.SUCCEEDED and _entry(job) == entry and _entry(booking) == entry
        )
        return max(by_record, by_handlers) if by_record and is_right else 0

    def _lanes_in_order(self) -> dict[str, bool]:
        """Return for each account whether its deposits committed, and enqueued their bookings, in their own order."""
        facts: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for job_id, entry in self.entries.items():
            execution, booking = self._committed(job_id), self.jobs.get(followup_id(job_id, 0))
            order = (-1, -1) if execution is None or booking is None else (execution.fence, booking.seq)
            facts[entry.account].append((entry.number, *order))
        return {
            account: all(
                later[0] == earlier[0] + 1 and later[1] > earlier[1] >= 0 and later[2] > earlier[2] >= 0
                for earlier, later in pairwise(of_account)
            )
            for account, of_account in facts.items()
        }

    def _ran_again_s(self, unfinished: list[Execution]) -> list[float]:
        """Return how long after the kill another handler began each job that the killed worker had not committed."""
        left = {(it.job_id, it.attempt + 1) for it in unfinished if it.worker == self.disturbance.killed}
        began = {(mark.job, mark.attempt): mark.at for mark in self.marks if mark.what == "began"}
        return sorted(began[run] - self.disturbance.killed_at for run in left & began.keys())

    # Lines -------------------------------------------------------------------------------------------------------

    def _about_jobs(self, audit: Audit) -> Finding:
        wrong = tuple(job_id for job_id in self.entries if not self._has_succeeded(job_id))
        text = f"{audit.jobs:,} in {audit.lanes} lanes, {audit.succeeded:,} succeeded"
        return Finding("jobs", text, not wrong, wrong)

    def _about_runs(self, audit: Audit) -> Finding:
        """Check that every run is on record, once."""
        on_record = {
            (job_id, execution.attempt, execution.worker)
            for job_id in self.entries.keys() & self.jobs.keys()
            for execution in self.jobs[job_id].executions
        }
        runs = Counter((mark.job, mark.attempt, mark.worker) for mark in self.marks if mark.what == "began")
        wrong = tuple(f"{run}: {count} times" for run, count in runs.items() if count > 1 or run not in on_record)
        text = f"{audit.handler_runs:,} for {audit.jobs:,} jobs, each on record"
        return Finding("handler runs", text, not wrong, wrong)

    def _about_effects(self, audit: Audit, effects: Mapping[str, int]) -> Finding:
        wrong = [f"{job_id}: {count} times" for job_id, count in effects.items() if count != 1]
        expected = {followup_id(job_id, 0) for job_id in self.entries}
        wrong += [
            f"{job.spec.id}: not in the ledger"
            for job in self.jobs.values()
            if job.spec.queue == LEDGER and job.spec.id not in expected
        ]
        wrong += self._wrong_commits()
        once, doubled, missing = audit.effects_once, audit.effects_doubled, audit.effects_missing
        text = f"{once:,} applied exactly once, {doubled} doubled, {missing} missing"
        return Finding("effects", text, not wrong, tuple(wrong))

    def _wrong_commits(self) -> Iterator[str]:
        """Check that the run whose commit returned is on record. It returned to all but those killed in between."""
        returned = {mark.job: (mark.attempt, mark.worker) for mark in self.marks if mark.what == "committed"}
        for job_id in self.entries:
            execution = self._committed(job_id)
            if execution is None or returned.get(job_id) == (execution.attempt, execution.worker):
                continue
            if job_id in returned or execution.worker != self.disturbance.killed:
                yield f"{job_id}: on record is {execution.worker}, but the commit of {returned.get(job_id)} returned"

    def _about_expired(self, audit: Audit) -> Finding:
        """Check how the leases ended. Where a death cannot be proved, the killed worker's end by time, too."""
        expired, died = audit.leases_expired, audit.leases_of_the_dead
        killed, stopped = self.disturbance.killed, self.disturbance.stopped
        proved, by_time = died.get(killed, 0), expired.get(killed, 0)
        text = (
            f"of the killed worker {proved} by proof of its death and {by_time} by expiry, "
            f"of the stopped one {expired.get(stopped, 0)} by expiry"
        )
        holds = proved + by_time > 0 and expired.get(stopped, 0) > 0 and died.keys() <= {killed}
        return Finding("leases ended", text, holds)

    def _about_refused(self, audit: Audit) -> Finding:
        """Check that the stopped worker came too late: each run that could not commit has a refused report."""
        on_record = {
            (job_id, refusal.worker, refusal.attempt) for job_id, job in self.jobs.items() for refusal in job.refusals
        }
        refused = {(mark.job, mark.worker, mark.attempt) for mark in self.marks if mark.what == "refused"}
        holds = refused <= on_record and any(worker == self.disturbance.stopped for _, worker, _ in refused)
        by_verb = audit.late_reports_refused
        verbs = ", ".join(f"{count} {verb}" for verb, count in sorted(by_verb.items())) or "none"
        return Finding("late reports refused", f"{sum(by_verb.values())}: {verbs}", holds)

    def _about_ends(self) -> Finding:
        name, codes = "exit codes", self.disturbance.exit_codes
        if self.disturbance.trouble is not None:
            return Finding(name, "the workers were not stopped", False, (self.disturbance.trouble,))
        wrong = tuple(f"{worker}: {code}" for worker, code in codes.items() if code != 0)
        return Finding(name, ", ".join(f"{worker} {code}" for worker, code in codes.items()), not wrong, wrong)


def _entry(job: Job) -> Entry | None:
    try:
        return msgspec.json.decode(job.result or b"", type=Entry)
    except msgspec.MsgspecError:
        return None


def _has_expired(execution: Execution) -> bool:
    return execution.reason is AbortReason.EXPIRED or execution.ended_by is Verb.EXPIRE


def _about_recovery(audit: Audit) -> Finding:
    times = audit.ran_again_s
    if not times:
        return Finding("after the kill", "every job that the killed worker held had been committed", None)
    took = " to ".join(dict.fromkeys(f"{seconds:.1f}" for seconds in (times[0], times[-1])))
    text = f"its jobs ran again after {took} s (lease {LEASE_S:g} s)"
    return Finding("after the kill", text, None)
