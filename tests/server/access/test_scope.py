"""What a key for some queues cannot do by a detour: chains, follow-ups, groups, unique keys, schedules, limits."""

from __future__ import annotations

from typing import Any

import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import ChainedJob, JobSpec, LimitTerms, Rules, UniqueKey
from leasemill.kernel.schedule import ScheduleSpec
from leasemill.server.access.authorization import MEMBERS_AT_ONCE
from leasemill.server.access.permissions import Scope
from leasemill.wire import requests as r
from leasemill.wire.problems import Denied
from leasemill.wire.routes import Role
from tests.server.access.world import DAY, World, key_of, record_of

CHAINED = Rules(chain=(ChainedJob("own.a", "k"), ChainedJob("zzz.b", "k")))
UNIQUELY_CHAINED = ChainedJob("own.a", "k", unique=UniqueKey("zzz-key"))
BY = ("mallory", "because")


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(("patterns", "queue", "has"), [
    (("*",), "anything", True),
    (("mail",), "mail", True),
    (("mail",), "mails", False),
    (("mail",), "xmail", False),
    (("billing.*",), "billing.eu", True),
    (("billing.*",), "billing", False),
    (("billing.*",), "xbilling.eu", False),
    (("billing.*",), "billingxeu", False),
    (("a?",), "ab", True),
    (("a?",), "abc", False),
    (("a", "b.*"), "b.c", True),
    (("*.eu",), "billing.eu", True),
    (("a", "*"), "z", True),
    (("mail",), "mail\n", False),
])  # fmt: skip
def test_a_pattern_stands_for_whole_names(patterns: tuple[str, ...], queue: str, has: bool) -> None:
    assert Scope("ci", patterns).has(queue) is has


def test_a_pattern_of_many_stars_takes_no_longer_for_it() -> None:
    assert not Scope("ci", ("*a" * 49 + "*",)).has("a" * 48 + "b" * 52)


@pytest.mark.parametrize("command", [
    c.Enqueue([JobSpec("new", "own.a", "k", rules=CHAINED)]),
    c.Enqueue([JobSpec("new", "own.a", "k", rules=Rules(group="zzz-group"))]),
    c.Commit("own-leased", "own-token", None, [c.Followup("own.a", "k"), c.Followup("zzz.b", "k")]),
    c.Commit("own-leased", "own-token", None, [c.Followup("own.a", "k", rules=CHAINED)]),
    c.Commit("own-leased", "own-token", None, [c.Followup("own.a", "k", rules=Rules(group="zzz-group"))]),
    c.CreateGroup("new", None, ChainedJob("zzz.b", "k")),
    c.CreateGroup("new", ChainedJob("own.a", "k"), None, "zzz-group"),
    c.SetSchedule(ScheduleSpec("new", "@daily", "UTC", JobSpec("", "own.a", "k", rules=CHAINED)), DAY, 1, *BY),
    c.SetSchedule(ScheduleSpec("zzz-schedule", "@daily", "UTC", JobSpec("", "own.a", "k")), DAY, 1, *BY),
    c.Redrive(c.JobFilter(), *BY, 10),
    c.Redrive(c.JobFilter(kind="k"), *BY, 10),
    c.Redrive(c.JobFilter(group="own-group"), *BY, 10),
    c.Redrive(c.JobFilter(job_ids=("own-failed", "zzz-failed")), *BY, 10),
    c.Purge(c.JobFilter(), *BY, 10),
    c.Purge(c.JobFilter(job_ids=("zzz-failed",)), *BY, 10),
    c.SetLimit("shared", LimitTerms(places=0), *BY),
    c.ClearLimit("shared", *BY),
    c.Ack([c.AckReport("own-leased", "own-token"), c.AckReport("zzz-leased", "zzz-token")]),
    c.ListJobs(c.JobFilter(queue="zzz.b"), 10),
    c.ListJobs(c.JobFilter(job_ids=("zzz-job",)), 10),
    c.ListJobs(c.JobFilter(group="zzz-group"), 10),
    c.ListGroups(10, parent="zzz-group"),
    c.GetKey("zzz.b", "zzz-key"),
])  # fmt: skip
def test_there_is_no_way_around_a_key_s_queues(world: World, command: c.Command[Any]) -> None:
    before = world.image()
    with pytest.raises(Denied) as denied:
        world.perform(world.worker_key, command)
    assert denied.value.problem.status == 403
    assert "zzz.b" not in denied.value.problem.detail.replace("queue 'zzz.b'", "")
    assert world.image() == before


@pytest.mark.parametrize("command", [
    c.Enqueue([JobSpec("new", "own.a", "k", rules=Rules(group="own-group", unique=UniqueKey("own-key")))]),
    c.Enqueue([JobSpec("new", "own.b", "k", rules=Rules(unique=UniqueKey("new"), chain=(ChainedJob("own.c", "k"),)))]),
    c.Commit("own-leased", "own-token", None, [c.Followup("own.a", "k", rules=Rules(group="own-group"))]),
    c.Redrive(c.JobFilter(job_ids=("own-failed", "nobody")), *BY, 10),
    c.ListJobs(c.JobFilter(job_ids=("own-job", "nobody")), 10),
    c.GetJob("nobody"),
    c.CancelGroup("own-group", *BY, 10),
    c.DeclareLimits([c.DeclaredLimit("new", LimitTerms(places=1))], "w"),
    c.DeclareLimits([c.DeclaredLimit("theirs", LimitTerms(places=3))], "w"),
])  # fmt: skip
def test_what_stays_inside_is_allowed(world: World, command: c.Command[Any]) -> None:
    world.perform(world.worker_key, command)


@pytest.mark.parametrize("command", [
    c.Enqueue([JobSpec("new", "own.a", "k", rules=Rules(unique=UniqueKey("zzz-key")))]),
    c.Enqueue([JobSpec("new", "own.a", "k", rules=Rules(chain=(UNIQUELY_CHAINED,)))]),
    c.Commit("own-leased", "own-token", None, [c.Followup("own.a", "k", rules=Rules(unique=UniqueKey("zzz-key")))]),
    c.CreateGroup("new", UNIQUELY_CHAINED, None),
    c.GetKey("own.a", "zzz-key"),
])  # fmt: skip
def test_the_unique_key_of_a_job_in_another_queue_is_free(world: World, command: c.Command[Any]) -> None:
    """U1: a key belongs to its queue, so that nothing is learnt of another queue's, and nothing is to be refused."""
    before = world.store.jobs(c.JobFilter(queue="zzz.b"))
    world.perform(world.worker_key, command)
    assert world.store.jobs(c.JobFilter(queue="zzz.b")) == before


def test_a_group_with_one_foreign_member_is_not_cancelled_wherever_that_is(world: World) -> None:
    count = MEMBERS_AT_ONCE + 50
    world.store.create_group("mixed")
    rules = Rules(group="mixed")
    world.store.enqueue([JobSpec(f"m-{number}", "own.a", "k", rules=rules) for number in range(count)])
    world.store.enqueue([JobSpec("foreign", "zzz.b", "k", rules=rules)])
    with pytest.raises(Denied):
        world.perform(world.worker_key, c.CancelGroup("mixed", *BY, 1000))
    group = world.store.group("mixed")
    assert group is not None
    assert group.cancelled == 0


def test_a_list_is_filled_from_the_pages_behind(world: World) -> None:
    world.store.enqueue([JobSpec(f"f-{number}", f"aaa.{number:03}", "k") for number in range(150)])
    world.store.enqueue([JobSpec(f"o-{number}", f"own.{number:03}", "k") for number in range(150)])
    first = world.perform(world.worker_key, c.ListQueues(100))
    assert [view.name for view in first] == [f"own.{number:03}" for number in range(100)]
    second = world.perform(world.worker_key, c.ListQueues(100, first[-1].name))
    assert [view.name for view in second] == [*(f"own.{number:03}" for number in range(100, 150)), "own.a"]


def test_totals_are_counted_over_the_key_s_queues(world: World) -> None:
    part, whole = (world.perform(key, c.GetTotals()) for key in (world.worker_key, key_of()))
    assert {state: 2 * count for state, count in part.counts.items()} == whole.counts
    assert part.timed_leases == 1


def test_the_next_tick_is_one_of_the_key_s_queues(world: World) -> None:
    spec = ScheduleSpec("zzz-early", "@daily", "UTC", JobSpec("", "zzz.b", "k"))
    world.store.run(c.SetSchedule(spec, 2 * DAY, DAY, "ada", "because"))
    assert world.perform(world.worker_key, c.NextTick()) == 5 * DAY
    assert world.perform(key_of(), c.NextTick()) == 2 * DAY


def test_who_holds_a_shared_limit_is_not_shown(world: World) -> None:
    world.store.run(c.Claim("w", ["zzz.b"], 10, [f"t{number}" for number in range(10)], None))
    assert "zzz-unique" in repr(world.perform(key_of(), c.GetLimit("shared")))
    view = world.perform(world.worker_key, c.GetLimit("shared"))
    assert (view.held, view.holders) == (1, ())


def test_of_a_worker_of_several_queues_only_what_is_the_key_s_is_shown(world: World) -> None:
    world.store.presence.publish("mixed", record_of("mixed", "own.a", "zzz.b"))
    shown = {one.worker_id: one.record for one in world.perform(world.worker_key, r.ListPresence())}
    assert shown["mixed"] == record_of("mixed", "own.a")


def test_a_producer_sees_the_members_of_a_group_and_no_other_list(world: World) -> None:
    producer = key_of(Role.PRODUCER)
    page = world.perform(producer, c.ListJobs(c.JobFilter(group="own-group"), 10))
    assert [job.spec.id for job in page.jobs] == ["own-member"]
    with pytest.raises(Denied):
        world.perform(producer, c.ListJobs(c.JobFilter(queue="own.a"), 10))


def test_sealing_as_an_operator_needs_one(world: World) -> None:
    with pytest.raises(Denied):
        world.perform(key_of(Role.PRODUCER), c.SealGroup("own-group", *BY))
    world.perform(key_of(Role.OPERATOR, name="ops"), c.SealGroup("own-group", *BY))
    assert world.store.actions(limit=1)[0].by == "ops"
