"""A client reports on what its key leased, and on nothing else, whatever tokens it has read."""

from __future__ import annotations

from typing import Any

import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.commands import REPORTS
from leasemill.kernel.model import JobSpec, JobState, LossReason
from leasemill.store.worker_records import records
from leasemill.wire import requests as r
from leasemill.wire.problems import Denied
from leasemill.wire.routes import Role
from tests.server.access.world import World, key_of, record_of

READ, PRODUCE, WORK, OPERATE = Role.READER, Role.PRODUCER, Role.WORKER, Role.OPERATOR
ALICE = key_of(WORK, READ, name="alice")
BOB = key_of(WORK, READ, name="bob")


@pytest.fixture
def world() -> World:
    world = World()
    world.store.enqueue([JobSpec("one", "q", "k"), JobSpec("two", "q", "k")])
    return world


def claimed(world: World, key: Any = ALICE, token: str = "t", request_id: str = "r") -> c.Lease:
    (lease,) = world.perform(key, c.Claim("w", ["q"], 1, [token], request_id))
    assert isinstance(lease, c.Lease)
    return lease


def reports(job_id: str, token: str) -> list[c.Command[Any]]:
    return [
        c.Start([c.StartReport(job_id, token)]),
        c.Extend([c.LeaseRef(job_id, token)]),
        c.Commit(job_id, token),
        c.Ack([c.AckReport(job_id, token)]),
        c.Nack([c.NackReport(job_id, token, "no")]),
        c.Release([c.ReleaseReport(job_id, token)]),
        c.Death([c.DeathReport(job_id, token, "gone")]),
    ]


def outcome_of(answer: Any) -> Any:
    return answer[0] if isinstance(answer, list) else answer


def test_a_lease_belongs_to_the_key_in_the_store_and_looks_as_it_was_asked_for_to_its_client(world: World) -> None:
    lease = claimed(world)
    assert (lease.worker, lease.token) == ("w", "t")
    job = world.store.job("one")
    assert job is not None
    assert [(run.worker, run.token, run.request_id) for run in job.executions] == [
        (f"w@{ALICE.id}", f"t@{ALICE.id}", f"r@{ALICE.id}")
    ]
    own = world.perform(ALICE, c.GetJob("one"))
    assert [(run.worker, run.token, run.request_id) for run in own.executions] == [("w", "t", "r")]
    assert world.perform(BOB, c.GetJob("one")) == job


every_report = pytest.mark.parametrize("index", range(len(reports("", ""))))


def test_there_is_one_of_every_report() -> None:
    assert {type(one) for one in reports("one", "t")} == {*REPORTS, c.Death}


@every_report
@pytest.mark.parametrize("spelling", ["t", "t@{id}"])
def test_no_report_of_another_key_does_anything_though_it_has_read_the_token(
    world: World, index: int, spelling: str
) -> None:
    claimed(world)
    token = spelling.format(id=ALICE.id)
    assert f"t@{ALICE.id}" in repr(world.perform(BOB, c.ListLeases(10)))  # it can be read
    outcome = outcome_of(world.perform(BOB, reports("one", token)[index]))
    assert isinstance(outcome, c.Lost)
    assert outcome.reason is LossReason.UNKNOWN
    job = world.store.job("one")
    assert job is not None
    assert (job.state, job.executions[0].started_at) == (JobState.LEASED, None)


@every_report
def test_every_report_of_the_holder_is_taken(world: World, index: int) -> None:
    lease = claimed(world)
    outcome = outcome_of(world.perform(ALICE, reports("one", lease.token)[index]))
    assert not isinstance(outcome, c.Lost)


@every_report
def test_nobody_reports_on_what_was_leased_without_a_key(world: World, index: int) -> None:
    world.store.run(c.Claim("w", ["q"], 1, ["bare"], None))
    outcome = outcome_of(world.perform(ALICE, reports("one", "bare")[index]))
    assert isinstance(outcome, c.Lost)


def test_it_holds_for_another_server_and_after_a_restart(world: World) -> None:
    """What binds a lease is in the store: nothing here remembers the claim."""
    lease = claimed(world)
    other = World.__new__(World)
    other.store = world.store
    assert isinstance(outcome_of(other.perform(BOB, c.Ack([c.AckReport("one", lease.token)]))), c.Lost)
    assert isinstance(outcome_of(other.perform(ALICE, c.Ack([c.AckReport("one", lease.token)]))), c.Acked)


def test_a_claim_is_repeated_by_its_own_key_alone(world: World) -> None:
    lease = claimed(world)
    assert claimed(world) == lease
    other = claimed(world, BOB)
    assert other.job.id == "two"
    assert world.perform(BOB, c.Claim("w", ["q"], 1, ["u"], f"r@{ALICE.id}")) == []


def test_a_token_that_looks_like_another_key_s_is_bound_to_its_own(world: World) -> None:
    lease = claimed(world, BOB, token=f"t@{ALICE.id}")
    assert lease.token == f"t@{ALICE.id}"
    assert isinstance(outcome_of(world.perform(ALICE, c.Ack([c.AckReport("one", "t")]))), c.Lost)
    assert isinstance(outcome_of(world.perform(BOB, c.Ack([c.AckReport("one", lease.token)]))), c.Acked)


def test_acquire_is_bound_too(world: World) -> None:
    request = c.AcquireRequest("stream", "a", 1, "w", "1-t")
    acquired = outcome_of(world.perform(ALICE, c.Acquire([request])))
    assert isinstance(acquired, c.Acquired)
    assert (acquired.lease.token, acquired.lease.worker) == ("1-t", "w")
    again = outcome_of(world.perform(ALICE, c.Acquire([request])))
    assert again == c.AlreadyAcquired(acquired.lease)
    seen = outcome_of(world.perform(BOB, c.Acquire([request])))
    assert isinstance(seen, c.AlreadyAcquired)
    assert seen.lease.token == f"1-t@{ALICE.id}"
    lane = world.perform(ALICE, c.GetLane("stream", "a"))
    assert [run.token for run in lane.head.executions] == ["1-t"]


# Deaths ------------------------------------------------------------------------------------------------------------


def test_the_leases_of_a_dead_worker_are_found_by_its_own_name_and_ended(world: World) -> None:
    lease = claimed(world, token="instance-1")
    (view,) = world.perform(ALICE, c.ListLeases(10, worker="w"))
    assert (view.token, view.worker) == (lease.token, "w")
    assert world.perform(BOB, c.ListLeases(10, worker="w")) == []
    died = world.perform(ALICE, c.Death([c.DeathReport("one", view.token, "gone")]))
    assert isinstance(died[0], c.Died)


def test_an_operator_reports_the_death_of_any_worker_as_lists_name_it(world: World) -> None:
    operator = key_of(OPERATE, name="ops")
    claimed(world)
    world.store.run(c.Claim("bare", ["q"], 1, ["bare"], None))
    for worker in (f"w@{ALICE.id}", "bare"):
        (view,) = world.perform(operator, c.ListLeases(10, worker=worker))
        died = world.perform(operator, c.Death([c.DeathReport(view.job_id, view.token, "gone")]))
        assert isinstance(died[0], c.Died), worker


def test_an_operator_that_works_as_well_reports_on_its_own_workers_and_on_others(world: World) -> None:
    both = key_of(OPERATE, WORK, name="both")
    own, other = claimed(world, both), claimed(world, ALICE)
    died = world.perform(
        both, c.Death([c.DeathReport(own.job.id, "t", "gone"), c.DeathReport(other.job.id, f"t@{ALICE.id}", "gone")])
    )
    assert [type(one) for one in died] == [c.Died, c.Died]


# Records -----------------------------------------------------------------------------------------------------------


def test_a_worker_s_record_has_the_name_of_its_leases_and_nobody_else_replaces_or_removes_it(world: World) -> None:
    world.perform(ALICE, r.PublishPresence("w", record_of("w", "q")))
    world.perform(BOB, r.PublishPresence("w", record_of("forged", "q")))
    names = {record.worker for record, _ in records(world.store.presence)}
    assert {f"w@{ALICE.id}", f"w@{BOB.id}"} <= names
    assert not {"w", "forged"} & names
    own = {one.worker_id: one.record for one in world.perform(ALICE, r.ListPresence())}
    assert own["w"] == record_of("w", "q")
    assert own[f"w@{BOB.id}"] == record_of(f"w@{BOB.id}", "q")
    assert not world.perform(BOB, r.RemovePresence(f"w@{ALICE.id}"))
    assert world.perform(key_of(OPERATE), r.RemovePresence(f"w@{ALICE.id}"))
    assert world.perform(BOB, r.RemovePresence("w"))


def test_a_record_that_cannot_be_read_is_kept_as_it_is(world: World) -> None:
    world.perform(ALICE, r.PublishPresence("w", b'{"version": 9}'))
    assert {one.worker_id: one.record for one in world.perform(ALICE, r.ListPresence())}["w"] == b'{"version": 9}'


# Batches -----------------------------------------------------------------------------------------------------------


def test_a_batch_with_one_forbidden_item_is_refused_whole_and_the_item_named(world: World) -> None:
    jobs = [JobSpec(f"new-{number}", "own.a", "k") for number in range(3)]
    jobs[1] = JobSpec("bad", "zzz.b", "k")
    before = world.image()
    with pytest.raises(Denied) as denied:
        world.perform(world.worker_key, c.Enqueue(jobs))
    assert denied.value.problem.field == "queue 'zzz.b' of job 'bad'"
    with pytest.raises(Denied) as denied:
        world.perform(world.worker_key, c.Cancel(["own-job", "nobody", "zzz-job"], "x", "y"))
    assert denied.value.problem.field == "job 'zzz-job'"
    with pytest.raises(Denied) as denied:
        world.perform(world.worker_key, c.Claim("w", ["own.a", "zzz.b"], 1, ["t"], "r"))
    assert denied.value.problem.field == "queue 'zzz.b'"
    assert world.image() == before
