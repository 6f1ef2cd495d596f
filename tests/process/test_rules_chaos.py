"""A few kills of workers while the rules are at work, and that the audit would notice what it looks for.

At full length: `make chaos-rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from leasemill.kernel.model import AbortReason, Execution, Job, JobSpec, JobState, LimitTerms, LimitUse, Rules, Terms
from leasemill.kernel.schedule import Schedule, ScheduleSpec, SkipReason
from leasemill.store.memory import MemoryStore
from leasemill.testing.drain import drain
from leasemill.testing.rules import rule
from tests.process import rules_app, rules_audit
from tests.process.rules_app import app
from tests.process.rules_audit import Records
from tests.process.rules_chaos import PARTS
from tests.process.rules_lab import Outcome, RulesLab
from tests.process.rules_parts import GroupsPart, Size

SLICE = Size(kills=6, groups=8, members=4)
BACKLOG = Size(kills=6, groups=0, members=0, workers=8)
SEED_WITH_A_STOP = 16


def run_until_shown(url_of: Callable[[int], str], folder: Path, seed: int, parts: Sequence[str], size: Size) -> Outcome:
    """The first run in which a kill came while a worker worked: on a quick machine all of them may come between jobs.
    `url_of`: an empty store for each run."""
    for number in range(3):
        own = folder / str(number)
        own.mkdir()
        with ExitStack() as cleaning:
            outcome = RulesLab(url_of(number), own, seed, parts, size, cleaning).run()
        assert outcome.wrong == []
        if outcome.expired_leases:
            return outcome
    pytest.fail("no kill came while a worker worked: nothing was shown")


@pytest.mark.timeout(180)
def test_nothing_is_lost_or_doubled_when_workers_are_killed(tmp_path: Path) -> None:
    run_until_shown(lambda number: f"file:{tmp_path}/jobs-{number}", tmp_path, 1, PARTS, SLICE)


@rule("T1", "T3", "T10")
@pytest.mark.timeout(180)
def test_limits_hold_when_eight_workers_are_killed_and_stopped(tmp_path: Path) -> None:
    outcome = run_until_shown(
        lambda number: f"file:{tmp_path}/jobs-{number}", tmp_path, SEED_WITH_A_STOP, ["backlog"], BACKLOG
    )
    assert outcome.stops > 0


# The audit ------------------------------------------------------------------------------------------------------


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[GroupsPart, Records]]:
    """The records of a run without a kill, and the part that made them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rules_app, "WORK_S", 0.0)
    with MemoryStore() as store, app.bound_to(store):
        part = GroupsPart(store, tmp_path, Size(kills=0, groups=8, members=4))
        part.feed(0, 1)
        for _ in range(2):
            drain(app)
            part.settle()
        drain(app)
        jobs = {job.spec.id: job for job in store.jobs(limit=1_000).jobs}
        yield part, Records(jobs, {view.id: view for view in store.groups()})


def wrong(part: GroupsPart, records: Records) -> list[str]:
    expected = part.expected(records)
    return [*rules_audit.ids(records, expected), *rules_audit.ends(records), *part.wrong(records)]


def test_the_audit_of_a_run_without_kills_holds(lab: tuple[GroupsPart, Records]) -> None:
    part, records = lab
    assert part.has_settled()
    assert wrong(part, records) == []


def test_the_audit_notices_lost_and_doubled_jobs(lab: tuple[GroupsPart, Records]) -> None:
    part, records = lab
    plain = records.jobs["group-000-0"]
    without = {job_id: job for job_id, job in records.jobs.items() if job_id != "group-000-0"}
    assert "group-000-0 is lost" in wrong(part, Records(without, records.groups))
    assert any("there are 3 members" in one for one in wrong(part, Records(without, records.groups)))
    doubled = records.jobs | {"other": replace(plain, spec=replace(plain.spec, id="other"))}
    assert "other is one too many" in wrong(part, Records(doubled, records.groups))
    waiting = records.jobs | {"group-000-0": replace(plain, state=JobState.READY)}
    assert any("has not ended" in one for one in wrong(part, Records(waiting, records.groups)))
    twice = records.jobs | {"group-000-0": replace(plain, executions=plain.executions * 2)}
    assert any("took effect 2 times" in one for one in wrong(part, Records(twice, records.groups)))


def test_the_audit_notices_wrong_counts_and_callbacks(lab: tuple[GroupsPart, Records]) -> None:
    part, records = lab
    view = records.groups["group-000"]
    miscounted = records.groups | {"group-000": replace(view, succeeded=view.succeeded - 1, failed=1)}
    assert any("counts 1 failed, and there are 0" in one for one in wrong(part, Records(records.jobs, miscounted)))
    unfinished = records.groups | {"group-000": replace(view, is_over=False)}
    assert any("unfinished" in one for one in wrong(part, Records(records.jobs, unfinished)))
    gone = {name: one for name, one in records.groups.items() if name != "group-000"}
    assert "group-000 is lost" in wrong(part, Records(records.jobs, gone))
    end = records.jobs["group-000/end"]
    twice = records.jobs | {"again": replace(end, spec=replace(end.spec, id="again"))}
    assert "group-000 ended 2 times" in wrong(part, Records(twice, records.groups))
    early = records.jobs | {"group-000/end": replace(end, created_at=end.created_at - 10_000_000)}
    assert any("before the last member had ended" in one for one in wrong(part, Records(early, records.groups)))
    then = records.jobs["group-000/then"]
    of_a_failure = replace(then, spec=replace(then.spec, id="group-001/then", payload=b'{"group":"group-001"}'))
    said = wrong(part, Records(records.jobs | {"group-001/then": of_a_failure}, records.groups))
    assert "group-001 (one member fails) enqueued `then` 1 times" in said


def test_the_audit_notices_more_leases_than_places(lab: tuple[GroupsPart, Records]) -> None:
    _, records = lab
    use = LimitUse("api", "ann")
    plain = records.jobs["group-000-0"]
    limited = replace(plain, spec=replace(plain.spec, rules=Rules(limits=(use,))))
    apart = (lease(0, 10), lease(10, 20), lease(20, 30))
    records = Records({"limited": replace(limited, executions=apart)})
    assert list(rules_audit.limits(records, {"api": LimitTerms(1)})) == []
    assert rules_audit.most_used(records) == {use: 1}
    together = Records({"limited": replace(limited, executions=(*apart, lease(9, 11)))})
    assert list(rules_audit.limits(together, {"api": LimitTerms(2)})) == []
    assert list(rules_audit.limits(together, {"api": LimitTerms(1)})) == [
        "limit api (ann) has 1 places, and 2 were held at 9"
    ]
    never_ended = Records({"limited": replace(limited, executions=(lease(0, None), lease(50, 60)))})
    assert rules_audit.most_used(never_ended) == {use: 2}
    early = replace(lease(0, 10), reason=AbortReason.EXPIRED)
    (said,) = rules_audit.limits(Records({"limited": replace(limited, executions=(early,))}), {"api": LimitTerms(1)})
    assert "before the lease had expired" in said


def test_the_audit_notices_grants_before_their_rate_is_due() -> None:
    terms = LimitTerms(rate=10, per_us=1_000, burst=3)  # one in 100
    for allowed in ([], [7], [0, 0, 0, 100, 200], [0, 500, 500, 500, 600], [0, 100, 200, 300, 300, 300]):
        assert rules_audit.too_early_us(allowed, terms) == 0
    assert rules_audit.too_early_us([0, 0, 0, 99], terms) == 1
    assert rules_audit.too_early_us([0, 500, 500, 500, 500], terms) == 100
    assert rules_audit.too_early_us([5], LimitTerms(1)) == 0


def test_the_audit_notices_lost_and_doubled_ticks() -> None:
    plain = JobSpec("", "ticks", "tick")
    spec = ScheduleSpec("every-2", "every 2 s", "UTC", plain)
    schedule = Schedule(spec, 1, 20_000_000, since_at=11_000_000, set_at=0, last_at=18_000_000, fired=4)
    ids = list(rules_audit.ids_of_schedule(schedule, 2))
    assert ids == [f"cron/every-2/1970-01-01T00:00:{second}Z" for second in (12, 14, 16, 18)]
    jobs = {job_id: Job(replace(plain, id=job_id), 1, 0, 0, 0) for job_id in ids}
    whole = Records(jobs, {}, {"every-2": schedule})
    assert [*rules_audit.schedules(whole, {"every-2": 2}), *rules_audit.ids(whole, ids)] == []
    lost = Records({job_id: job for job_id, job in jobs.items() if job_id != ids[1]}, {}, whole.schedules)
    assert list(rules_audit.ids(lost, ids)) == [f"{ids[1]} is lost"]
    assert any("made 3 jobs" in one for one in rules_audit.schedules(lost, {"every-2": 2}))
    skipped = Records(jobs, {}, {"every-2": replace(schedule, skipped={SkipReason.MISSED: 1})})
    assert list(rules_audit.schedules(skipped, {"every-2": 2})) != []
    assert list(rules_audit.schedules(Records(jobs), {"every-2": 2})) == ["schedule every-2 never fired"]


def lease(leased_at: int, finished_at: int | None) -> Execution:
    return Execution("limited", 1, 1, "token", "worker", None, leased_at, 1_000, Terms(), finished_at=finished_at)
