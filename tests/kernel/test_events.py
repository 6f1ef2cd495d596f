"""Events as they are stored: every kind comes back as it was, under a number that never changes."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from leasemill.errors import Broken
from leasemill.kernel import events as e
from leasemill.kernel.apply import apply
from leasemill.kernel.events import AnyEvent, Event
from leasemill.kernel.image import digest
from leasemill.kernel.model import JobSpec, LossReason, OnFailure, Policy, Terms, Verb
from leasemill.kernel.state import State
from leasemill.testing.rules import rule

POLICY = Policy(1, 2_000, 3, 4, 5, 6, OnFailure.BLOCK)
SPEC = JobSpec("job", "queue", "kind", b'{"a": 1}', "lane", 9, 10**15, 0, POLICY, 2**62)
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


NEEDS_A_JOB = [(number, event) for number, event in FULL if number in range(2, 15)]


@pytest.mark.parametrize(("number", "event"), NEEDS_A_JOB, ids=lambda value: type(value).__name__)
def test_an_event_that_does_not_follow_is_a_broken_log(number: int, event: AnyEvent) -> None:
    with pytest.raises(Broken, match="does not follow"):
        apply(State(), event)


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
