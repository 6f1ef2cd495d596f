"""A few kills of workers while another stands still, and that the audit would notice what it looks for.

At full length: `make chaos-deaths`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from leasemill.kernel.model import SECOND, AbortReason, Execution, JobState, Verb
from leasemill.store.memory import MemoryStore
from leasemill.store.url import URL_VARIABLE
from leasemill.testing.drain import drain
from leasemill.testing.rules import rule
from tests.process.deaths import app as jobs
from tests.process.deaths import audit
from tests.process.deaths.app import KINDS, TRAILS_VARIABLE, app, read_trails
from tests.process.deaths.audit import Evidence, Kill, Stop, spread
from tests.process.deaths.fleet import born_as
from tests.process.deaths.lab import FORMS, DeathsLab, Size

SLICE = Size(kills=3, stops=1, stop_s=(0.5, 1.0), grown_s=0.0)


@rule("L10")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("form", FORMS)
def test_the_jobs_of_killed_workers_run_again_before_their_leases_expire(tmp_path: Path, form: str) -> None:
    with ExitStack() as cleaning:
        outcome = DeathsLab(f"file:{tmp_path / 'jobs'}", tmp_path, form, 1, cleaning).run(SLICE)
    assert outcome.wrong == []
    assert outcome.held, "no kill came while a worker worked: nothing was shown"


# The audit ------------------------------------------------------------------------------------------------------


@pytest.fixture
def evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Evidence]:
    """Of four jobs, one of each kind, and nobody killed."""
    monkeypatch.setenv(TRAILS_VARIABLE, str(tmp_path))
    monkeypatch.setenv(URL_VARIABLE, "file:")
    monkeypatch.setattr(jobs, "RUN_S", 0.0)
    jobs._descriptor.cache_clear()
    with MemoryStore() as store, app.bound_to(store):
        for name, kind in KINDS.items():
            kind.options(job_id=name).enqueue()
        drain(app)
        records = {job.spec.id: job for job in store.jobs().jobs}
    yield Evidence(list(KINDS), records, read_trails(tmp_path))
    jobs._descriptor.cache_clear()


def wrong(evidence: Evidence, **changed: object) -> list[str]:
    return list(audit.wrong(dataclasses.replace(evidence, **changed)))  # type: ignore[arg-type]


def with_a_first_run(evidence: Evidence, **first: object) -> dict[str, object]:
    """As if the first run of the job `async` had ended so, and another had succeeded."""
    job = evidence.jobs["async"]
    (one,) = job.executions
    assert one.finished_at is not None
    second = replace(one, attempt=2, fence=one.fence + 100, leased_at=one.finished_at)
    aborted: Execution = replace(one, committed_at=None, ended_by=Verb.EXPIRE, **first)
    result = f'{{"attempt":2,"fence":{second.fence},"worker":"{second.worker}"}}'.encode()
    again = replace(job, executions=(aborted, second), result=result)
    marks = [mark for mark in evidence.marks if mark.job == "async"]
    began = [mark for mark in marks if mark.what == "began"]
    moved = [replace(mark, attempt=2, fence=second.fence, at=mark.at + 1.0, pid=1) for mark in marks]
    others = [mark for mark in evidence.marks if mark.job != "async"]
    return {"jobs": {**evidence.jobs, "async": again}, "marks": [*others, *began, *moved]}


def kill_in(evidence: Evidence) -> Kill:
    (mark,) = (mark for mark in evidence.marks if (mark.job, mark.what) == ("async", "began"))
    one = evidence.jobs["async"].executions[0]
    return Kill(one.worker, mark.pid, mark.at + 0.1, one.leased_at)


def test_the_audit_of_a_run_without_kills_holds(evidence: Evidence) -> None:
    assert wrong(evidence) == []
    assert audit.held(evidence) == []
    rows = [(name, 1, evidence.jobs[name].executions[0].fence) for name in KINDS]
    assert wrong(evidence, effects=rows) == []


def test_the_audit_notices_lost_and_doubled_jobs(evidence: Evidence) -> None:
    lost = {job_id: job for job_id, job in evidence.jobs.items() if job_id != "sync/0"}
    assert wrong(evidence, jobs=lost)[0] == "sync/0 is lost"
    assert "other is one too many" in wrong(evidence, jobs={**evidence.jobs, "other": evidence.jobs["sync"]})
    sync = evidence.jobs["sync"]
    ready = wrong(evidence, jobs={**evidence.jobs, "sync": replace(sync, state=JobState.READY, retries=1)})
    assert ready == ["sync is ready after 1 retries: no error"]


def test_the_audit_notices_doubled_effects(evidence: Evidence) -> None:
    sync = evidence.jobs["sync"]
    (one,) = sync.executions
    twice = replace(sync, executions=(one, replace(one, attempt=2, fence=one.fence + 1)))
    assert "sync is committed 2 times by the store's records" in wrong(evidence, jobs={**evidence.jobs, "sync": twice})
    (known,) = (mark for mark in evidence.marks if (mark.job, mark.what) == ("sync", "committed"))
    other = replace(known, fence=known.fence + 1)
    said = wrong(evidence, marks=[*evidence.marks, other])
    assert said == ["sync took effect 2 times: its handlers know of each"]
    unknown = [mark for mark in evidence.marks if mark is not known]
    assert "handler was not killed and does not know" in wrong(evidence, marks=unknown)[0]
    assert "in another run" in wrong(evidence, marks=[*unknown, other])[0]
    rows = [(name, 1, evidence.jobs[name].executions[0].fence) for name in KINDS]
    assert wrong(evidence, effects=[*rows, rows[0]]) == ["async is in the user's table 2 times"]
    assert wrong(evidence, effects=rows[1:]) == ["async is in the user's table 0 times"]
    stale = [("async", 1, 0), *rows[1:]]
    assert wrong(evidence, effects=stale) == ["the user's table has attempt 1 of async, and the store another"]
    assert "result of another run" in wrong(evidence, jobs={**evidence.jobs, "sync": replace(sync, result=b"0")})[0]


def test_the_audit_notices_fences_that_fall_and_runs_without_a_lease(evidence: Evidence) -> None:
    died = with_a_first_run(evidence, reason=AbortReason.DIED, fence=1_000)
    assert any("fences that do not rise" in one for one in wrong(evidence, **died, kills=[kill_in(evidence)]))
    ghost = replace(evidence.marks[0], attempt=7)
    assert any("no lease on record" in one for one in wrong(evidence, marks=[*evidence.marks, ghost]))


def test_the_audit_notices_a_worker_that_is_declared_dead_and_lives(evidence: Evidence) -> None:
    died = with_a_first_run(evidence, reason=AbortReason.DIED)
    kill = kill_in(evidence)
    assert wrong(evidence, **died, kills=[kill]) == []
    assert any("its worker" in one and "was alive" in one for one in wrong(evidence, **died))
    for other in (kill._replace(worker="other"), kill._replace(wall=kill.wall + 3_600 * SECOND)):
        assert any("was alive" in one for one in wrong(evidence, **died, kills=[other]))


def test_the_audit_notices_a_death_that_nobody_noticed(evidence: Evidence) -> None:
    kill, expired = kill_in(evidence), with_a_first_run(evidence, reason=AbortReason.EXPIRED)
    assert any("killed, which nobody noticed" in one for one in wrong(evidence, **expired, kills=[kill]))
    stop = Stop(kill.worker, kill.pid, kill.at, kill.at + 31.0)
    assert wrong(evidence, **expired, kills=[kill], stops=[stop]) == []


def test_the_audit_notices_two_runs_at_once_and_one_that_vanishes(evidence: Evidence) -> None:
    died = with_a_first_run(evidence, reason=AbortReason.DIED)
    kill = kill_in(evidence)
    late = [kill._replace(at=kill.at + 5.0)]
    assert any("before the one before ended" in one for one in wrong(evidence, **died, kills=late))
    unended = [mark for mark in evidence.marks if mark.what != "ended"]
    assert any("was not killed, and never ended" in one for one in wrong(evidence, marks=unended))


def test_the_time_to_the_next_run_is_counted_from_the_kill(evidence: Evidence) -> None:
    died = with_a_first_run(evidence, reason=AbortReason.DIED)
    (held,) = audit.held(dataclasses.replace(evidence, **died, kills=[kill_in(evidence)]))  # type: ignore[arg-type]
    assert held.started_s == pytest.approx(0.9)
    assert spread([]).number == 0
    assert spread([4.0])[1:] == (4.0, 4.0, 4.0)
    assert spread([float(number) for number in range(101)])[1:] == (50.0, 99.0, 100.0)


def test_what_happened_to_the_slowest_is_told_from_the_kill_on(evidence: Evidence) -> None:
    kill = kill_in(evidence)
    (one,) = evidence.jobs["async"].executions
    died = with_a_first_run(evidence, reason=AbortReason.DIED, finished_at=kill.wall + 2 * SECOND)
    stops = [Stop("other", 1, kill.at - 1.0, kill.at + 1.0), Stop("earlier", 2, kill.at - 2.0, kill.at - 1.0)]
    whole = dataclasses.replace(evidence, **died, kills=[kill], stops=stops)  # type: ignore[arg-type]
    (told,) = audit.slowest(whole, audit.held(whole), over_s=0.5)
    assert audit.slowest(whole, audit.held(whole), over_s=1.0) == []
    assert told.startswith(f"async of {one.worker}: leased +0.00, ended as died +2.00, leased to {one.worker} ")
    assert told.endswith("; stood still: other -1.00 to +1.00")


def test_a_process_with_the_id_of_one_that_was_killed_is_another(evidence: Evidence) -> None:
    born = born_as(os.getpid())
    assert born is not None
    assert born == born_as(os.getpid())
    assert born_as(2**22 + 1) is None
    kill = kill_in(evidence)
    unended = [mark for mark in evidence.marks if (mark.job, mark.what) != ("async", "ended")]
    assert wrong(evidence, marks=unended, kills=[kill]) == []
    for other in (kill._replace(worker="other"), kill._replace(at=kill.at - 1.0)):
        assert any("never ended" in one for one in wrong(evidence, marks=unended, kills=[other]))
