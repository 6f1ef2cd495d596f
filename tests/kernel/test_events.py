"""Events as they are stored: every kind comes back as it was, under a number that never changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from leasemill.errors import Broken
from leasemill.kernel import events as e
from leasemill.kernel.events import AnyEvent, Event
from leasemill.kernel.image import digest
from leasemill.kernel.machine import apply
from leasemill.kernel.model import (
    ENDING_VERBS,
    SECOND,
    ChainedJob,
    EndingVerb,
    JobSpec,
    JobState,
    LimitTerms,
    LossReason,
    OnFailure,
    Order,
    Policy,
    Terms,
    Verb,
)
from leasemill.kernel.schedule import Missed, Overlap, ScheduleSpec, Skip, SkipReason
from leasemill.kernel.state import State
from leasemill.testing.rules import rule

POLICY = Policy(1, 2_000, 3, 4, 5, 6, OnFailure.BLOCK)
SPEC = JobSpec("job", "queue", "kind", b'{"a": 1}', "lane", 9, 10**15, 0, POLICY, 2**62)
SCHEDULE = ScheduleSpec("tidy", "* * * * *", "UTC", SPEC, Overlap.ONE, Missed.ALL, 1, 2)
FULL: list[tuple[int, AnyEvent]] = [
    (1, e.JobEnqueued(SPEC, 10**15)),
    (2, e.LeaseGranted("job", 1, 2, "token", "worker", "request", 10**15, 2**63 - 1, Terms())),
    (3, e.ExecutionStarted("job", "token", 5, 4)),
    (4, e.LeaseExtended("job", "token", 5, 6)),
    (5, e.ExecutionCommitted("job", "token", 5, b"\x00\xff", (SPEC, JobSpec("two", "queue", "kind")))),
    (6, e.ExecutionDone("job", "token", 5, Verb.EXPIRE, None, "note")),
    (7, e.ExecutionFailed("job", "token", 5, "error ✓", True, True, None)),
    (8, e.FailureKept("job", "token", 5, "error", "report")),
    (9, e.LeaseReleased("job", "token", 5, 6, "why")),
    (10, e.LeaseExpired("job", "token", 5, True, False)),
    (11, e.ReportRefused("job", "token", Verb.ACK, None, None, 3, LossReason.UNKNOWN, 5)),
    (12, e.JobCancelled("job", 5, "ada", "why")),
    (13, e.JobRedriven("job", 5, "ada", "why")),
    (14, e.JobPurged("job", 5, "ada", "why")),
    (15, e.QueuePaused("queue", 5, "ada", "why")),
    (16, e.QueueResumed("queue", 5, "ada", "why")),
    (17, e.QueuePolicySet("queue", 5, "ada", "why", POLICY)),
    (18, e.JobsPruned(("job", "two"), 5)),
    (45, e.GroupCreated("group", 5, ChainedJob("queue", "kind", policy=POLICY), ChainedJob("queue", "kind"), "parent")),
    (46, e.GroupSealed("group", 5)),
    (47, e.GroupEnded("group", 5, True)),
    (48, e.GroupsPruned(("group", "two"), 5)),
    (30, e.JobReplaced("job", 5, b'{"a": 2}', {"trace": "1"}, 6)),
    (35, e.LimitSet("api", 5, "ada", "why", LimitTerms(3, 100, SECOND, 10))),
    (36, e.LimitCleared("api", 5, "ada", "why")),
    (37, e.LimitDeclared("api", 5, "worker", "declared in code", LimitTerms(3))),
    (38, e.RateCharged("api", "key", 5, 7)),
    (39, e.RateHeld("api", None, 5, 7)),
    (19, e.ScheduleSet(SCHEDULE, 2, 10**15, 5, "ada", "why", 6)),
    (20, e.ScheduleRemoved("tidy", 5, "ada", "why")),
    (21, e.SchedulePaused("tidy", 5, "ada", "why")),
    (22, e.ScheduleResumed("tidy", 10**15, 5, "ada", "why", (Skip(4, SkipReason.PAUSED),), 3)),
    (23, e.ScheduleFired("tidy", 4, 6, 5, ("cron/tidy/a",), ("b",), (Skip(3, SkipReason.OVERLAP, "b"),), 3)),
    (24, e.ScheduleFiredByHand("tidy", 5, "ada", "why", "cron/tidy/a")),
    (50, e.HolderDied("job", "token", 5, True, False, "exit status 137")),
    (51, e.WorkerOrdered("worker", "instance", Order.QUIET, 5, "ada", "why")),
    (52, e.ClockSet(9, 5)),
    (25, e.ScheduleBackfilled("tidy", 5, "ada", "why", ("cron/tidy/a",))),
]
by_name = pytest.mark.parametrize(("number", "event"), FULL, ids=lambda value: type(value).__name__)


def test_there_is_an_example_of_every_event() -> None:
    kinds = {type(event) for _, event in FULL}
    assert kinds == set(get_args(AnyEvent)) == set(Event.__subclasses__())


@by_name
def test_an_event_comes_back_as_it_was(number: int, event: AnyEvent) -> None:
    encoded = msgspec.msgpack.encode(event)
    assert msgspec.msgpack.decode(encoded, type=AnyEvent) == event


@by_name
def test_an_event_is_stored_as_its_number_and_its_fields_in_order(number: int, event: AnyEvent) -> None:
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(event))
    assert stored[0] == number
    assert len(stored) == 1 + len(event.__struct_fields__)


def test_an_unknown_event_is_not_read_as_another() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode([99, "job"]), type=AnyEvent)


@rule("E5")
def test_an_enqueue_applied_twice_counts_once() -> None:
    state = State()
    apply(state, e.JobEnqueued(SPEC, 5))
    before = digest(state)
    apply(state, e.JobEnqueued(SPEC, 6))
    apply(state, e.JobEnqueued(JobSpec("job", "other", "kind"), 6))
    assert digest(state) == before


NEEDS_A_JOB = [(number, event) for number, event in FULL if number in range(2, 15) or number == 30]


@pytest.mark.parametrize(("number", "event"), NEEDS_A_JOB, ids=lambda value: type(value).__name__)
def test_an_event_that_does_not_follow_is_a_broken_log(number: int, event: AnyEvent) -> None:
    with pytest.raises(Broken, match="does not follow"):
        apply(State(), event)


HELD = e.LeaseGranted("job", 1, 1, "token", "worker", None, 5, 10, Terms())
COMMITTED = e.ExecutionCommitted("job", "token", 6, None, ())
DONE = e.ExecutionDone("job", "token", 6, Verb.ACK, None, None)
FAILED = e.ExecutionFailed("job", "token", 7, "no", True, False, None)
STARTED = e.ExecutionStarted("job", "token", 6, 6)
CANCELLED = e.JobCancelled("job", 6, "ada", "why")


@rule("X1", "X4", "X5", "I1", "I3", "L9", "O2", "O5", "O7")
@pytest.mark.parametrize(
    ("before", "event"),
    [
        pytest.param([HELD], e.LeaseGranted("job", 2, 2, "two", "w", None, 6, 9, Terms()), id="a second grant"),
        pytest.param([HELD, DONE], e.LeaseGranted("job", 2, 2, "two", "w", None, 6, 9, Terms()), id="a grant of ended"),
        pytest.param([], e.LeaseGranted("job", 2, 1, "two", "w", None, 6, 9, Terms()), id="an attempt left out"),
        pytest.param([], e.LeaseGranted("job", 1, 0, "two", "w", None, 6, 9, Terms()), id="a fence that does not rise"),
        pytest.param(
            [HELD, e.ExecutionStarted("job", "token", 6, 6)],
            e.ExecutionStarted("job", "token", 7, 7),
            id="a second start",
        ),
        pytest.param([HELD, COMMITTED], e.ExecutionStarted("job", "token", 7, 7), id="a start after the commit"),
        pytest.param([HELD], e.LeaseExtended("job", "token", 6, 9), id="a shorter lease"),
        pytest.param([HELD, COMMITTED], COMMITTED, id="a second commit"),
        pytest.param([HELD, DONE], DONE, id="a second end"),
        pytest.param([HELD], e.ExecutionDone("job", "token", 6, Verb.EXPIRE, None, None), id="expired as done"),
        pytest.param(
            [HELD, COMMITTED],
            e.ExecutionFailed("job", "token", 7, "no", True, False, None),
            id="a failure after the commit",
        ),
        pytest.param([HELD, COMMITTED], e.FailureKept("job", "token", 7, "no", "r"), id="a kept failure after it"),
        pytest.param([HELD, COMMITTED], e.LeaseReleased("job", "token", 7, 7), id="a release after the commit"),
        pytest.param([HELD, COMMITTED], e.LeaseExpired("job", "token", 7, False, False), id="an expiry after it"),
        pytest.param([HELD, COMMITTED], CANCELLED, id="a cancellation after the commit"),
        pytest.param([CANCELLED], CANCELLED, id="a second cancellation"),
        pytest.param([], e.JobRedriven("job", 6, "ada", "why"), id="a redrive of a job that waits"),
        pytest.param([HELD, DONE], e.JobRedriven("job", 7, "ada", "why"), id="a redrive of a success"),
        pytest.param([], e.JobPurged("job", 6, "ada", "why"), id="a purge of a job that waits"),
        pytest.param([HELD], e.JobPurged("job", 6, "ada", "why"), id="a purge of a leased job"),
        pytest.param([HELD], e.JobsPruned(("job",), 6), id="a pruned job that has not succeeded"),
        pytest.param([], e.JobsPruned(("other",), 6), id="a pruned job that is not there"),
    ],
)
def test_an_event_that_cannot_follow_is_refused_as_a_broken_log(before: list[AnyEvent], event: AnyEvent) -> None:
    state = State()
    for one in (e.JobEnqueued(JobSpec("job", "queue", "kind"), 5), *before):
        apply(state, one)
    digested = digest(state)
    with pytest.raises(Broken, match=f"{type(event).__name__} for job .* does not follow"):
        apply(state, event)
    assert digest(state) == digested


REPORTED_AT: dict[str, Callable[[int], AnyEvent]] = {
    "a start": lambda at: e.ExecutionStarted("job", "token", at, 6),
    "an extension": lambda at: e.LeaseExtended("job", "token", at, 100),
    "a commit": lambda at: e.ExecutionCommitted("job", "token", at, None, ()),
    "a success": lambda at: e.ExecutionDone("job", "token", at, Verb.ACK, None, None),
    "a failure": lambda at: e.ExecutionFailed("job", "token", at, "no", True, False, None),
    "a kept failure": lambda at: e.FailureKept("job", "token", at, "no", "r"),
    "a release": lambda at: e.LeaseReleased("job", "token", at, at),
}
ENDED_AT: dict[str, Callable[[int], AnyEvent]] = {
    "an expiry": lambda at: e.LeaseExpired("job", "token", at, False, False),
    "a death": lambda at: e.HolderDied("job", "token", at, False, False, "exit status 137"),
    "a cancellation": lambda at: e.JobCancelled("job", at, "ada", "why"),
}
EXPIRES_AT = HELD.expires_at


def held_state(*events: AnyEvent) -> State:
    state = State()
    for one in (e.JobEnqueued(JobSpec("job", "queue", "kind"), 5), HELD, *events):
        apply(state, one)
    return state


@rule("L2", "L3")
@pytest.mark.parametrize("report", REPORTED_AT)
def test_a_report_that_is_dated_after_the_end_of_its_lease_is_a_broken_log(report: str) -> None:
    apply(held_state(), REPORTED_AT[report](EXPIRES_AT - 1))
    for at in (EXPIRES_AT, EXPIRES_AT + 1, EXPIRES_AT + 500):
        state = held_state()
        digested = digest(state)
        with pytest.raises(Broken, match=r"does not follow .* its lease had expired"):
            apply(state, REPORTED_AT[report](at))
        assert digest(state) == digested


@rule("L3", "L9")
def test_a_committed_lease_is_not_extended_after_its_end_either() -> None:
    with pytest.raises(Broken, match="its lease had expired"):
        apply(held_state(COMMITTED), REPORTED_AT["an extension"](EXPIRES_AT))


@rule("L6", "X5")
@pytest.mark.parametrize("verb", ENDING_VERBS)
def test_what_was_committed_is_finished_whatever_the_time(verb: EndingVerb) -> None:
    for at in (EXPIRES_AT - 1, EXPIRES_AT, EXPIRES_AT + 500):
        state = held_state(COMMITTED, e.ExecutionDone("job", "token", at, verb, None, None))
        assert state.jobs["job"].state is JobState.SUCCEEDED


@rule("W10", "L10", "O1")
@pytest.mark.parametrize("end", ENDED_AT)
def test_a_lease_is_ended_without_its_holder_whatever_the_time(end: str) -> None:
    """W10: the first process of a new boot expires leases whose time is not over."""
    for at in (EXPIRES_AT - 3, EXPIRES_AT, EXPIRES_AT + 500):
        assert held_state(ENDED_AT[end](at)).jobs["job"].state is not JobState.LEASED


NEEDS_A_SCHEDULE = [(number, event) for number, event in FULL if number in range(20, 26)]


@pytest.mark.parametrize(("number", "event"), NEEDS_A_SCHEDULE, ids=lambda value: type(value).__name__)
def test_an_event_of_a_schedule_that_is_not_there_is_a_broken_log(number: int, event: AnyEvent) -> None:
    with pytest.raises(Broken, match="no such schedule"):
        apply(State(), event)


@rule("P3")
def test_a_next_tick_that_does_not_rise_is_a_broken_log() -> None:
    state = State()
    apply(state, e.ScheduleSet(SCHEDULE, 1, 6, 5, "ada", "why", 5))
    before = digest(state)
    with pytest.raises(Broken, match="does not rise"):
        apply(state, e.ScheduleFired("tidy", 4, 6, 5, (), (), (), 0))
    assert digest(state) == before


@rule("N1")
def test_a_grant_behind_the_head_of_a_lane_is_a_broken_log() -> None:
    state = State()
    for job_id in ("first", "second"):
        apply(state, e.JobEnqueued(JobSpec(job_id, "queue", "kind", lane="lane"), 5))
    with pytest.raises(Broken, match="does not follow"):
        apply(state, e.LeaseGranted("second", 1, 1, "token", "worker", None, 6, 9, Terms()))


@pytest.mark.parametrize(
    ("number", "event"), [pair for pair in FULL if pair[0] in range(3, 11)], ids=lambda value: type(value).__name__
)
def test_a_report_by_another_token_is_a_broken_log(number: int, event: AnyEvent) -> None:
    """The fence is checked when an event is decided; applying one that passed it wrongly would hide the fault."""
    state = State()
    apply(state, e.JobEnqueued(JobSpec("job", "queue", "kind"), 5))
    apply(state, e.LeaseGranted("job", 1, 1, "the holder's", "worker", None, 5, 10, Terms()))
    before = digest(state)
    with pytest.raises(Broken, match="live lease is another"):
        apply(state, event)
    assert digest(state) == before


def test_the_page_of_the_log_format_lists_every_event_under_its_number() -> None:
    page = (Path(__file__).parents[2] / "docs/log-format.md").read_text()
    listed = re.findall(r"\| (\d+) \| ([A-Z]\w+) (?=\|)", page)
    assert sorted(listed) == sorted((str(one.__struct_config__.tag), one.__name__) for one in get_args(AnyEvent))
