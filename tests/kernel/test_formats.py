"""W16: whatever an earlier version cannot read raises the format: every event, and every verb wherever it is stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from msgspec import Struct

from leasemill.kernel import events as e
from leasemill.kernel.events import AnyEvent
from leasemill.kernel.image import Image
from leasemill.kernel.invariants import violations
from leasemill.kernel.machine import EVENTS, apply
from leasemill.kernel.model import (
    ENDING_VERBS,
    Action,
    EndingVerb,
    Job,
    JobSpec,
    LimitTerms,
    LossReason,
    Order,
    Refusal,
    Rules,
    Terms,
    UniqueKey,
    Verb,
)
from leasemill.kernel.state import KEYS_FORMAT, PLAIN_FORMAT, RULES_FORMAT, State
from leasemill.kernel.transitions.actions import record, record_job
from leasemill.kernel.transitions.formats import VERB_FORMATS
from leasemill.store.file.format import FORMATS
from leasemill.testing.rules import rule

ENQUEUED = e.JobEnqueued(JobSpec("job", "queue", "kind"), 5)
HELD = e.LeaseGranted("job", 1, 1, "token", "worker", None, 5, 10, Terms())
COMMITTED = e.ExecutionCommitted("job", "token", 6, None, ())


def fields(kind: Any, seen: set[type]) -> Iterator[tuple[str, str]]:
    """Every field of a record, or of records in it, whose value is a verb."""
    for part in get_args(kind):
        yield from fields(part, seen)
    if get_origin(kind) is not None or not isinstance(kind, type) or not issubclass(kind, Struct) or kind in seen:
        return
    seen.add(kind)
    for name, hint in get_type_hints(kind).items():
        if Verb in (hint, *get_args(hint)):
            yield kind.__name__, name
        yield from fields(hint, seen)


def applied(*events: AnyEvent) -> State:
    state = State()
    for event in events:
        apply(state, event)
    return state


def test_every_event_and_every_verb_has_a_format_that_is_known() -> None:
    assert set(EVENTS) == set(get_args(AnyEvent))
    assert list(VERB_FORMATS) == list(Verb)
    assert {rules.format for rules in EVENTS.values()} | set(VERB_FORMATS.values()) | {KEYS_FORMAT} == set(FORMATS)


def test_every_record_that_holds_a_verb_is_known_here() -> None:
    """A new one needs `require_verb` where it is stored, its line in the invariant, and a test below."""
    seen = set[type]()
    assert {*fields(AnyEvent, seen), *fields(Image, seen), *fields(Job, seen)} == {
        ("ExecutionDone", "ended_by"),
        ("ReportRefused", "verb"),
        ("Execution", "ended_by"),
        ("Execution", "committed_by"),
        ("Refusal", "verb"),
        ("Action", "verb"),
    }


@rule("W16")
@pytest.mark.parametrize(
    "event",
    [
        e.GroupCreated("group", 5, None, None, None),
        e.LimitDeclared("api", 5, "worker", "declared in code", LimitTerms(3)),
        e.RateHeld("api", None, 5, 7),
        e.WorkerOrdered("worker", "instance", Order.QUIET, 5, "ada", "why"),
        e.ClockSet(9, 5),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_raises_the_format_to_its_own_and_never_lowers_it(event: AnyEvent) -> None:
    assert applied(event).format == EVENTS[type(event)].format > PLAIN_FORMAT
    state = State()
    state.format = max(FORMATS)
    apply(state, event)
    assert state.format == max(FORMATS)


@rule("W16")
@pytest.mark.parametrize("verb", ENDING_VERBS)
def test_the_verb_that_ends_an_execution_raises_the_format(verb: EndingVerb) -> None:
    state = applied(ENQUEUED, HELD, COMMITTED, e.ExecutionDone("job", "token", 7, verb, None, None))
    assert state.format == VERB_FORMATS[verb]


@rule("W16")
@pytest.mark.parametrize("verb", Verb)
def test_the_verb_of_a_refusal_raises_the_format(verb: Any) -> None:
    state = applied(ENQUEUED, e.ReportRefused("job", "token", verb, None, None, 0, LossReason.UNKNOWN, 6))
    assert state.format == VERB_FORMATS[verb]


@rule("W16")
@pytest.mark.parametrize("verb", Verb)
def test_the_verb_of_an_action_raises_the_format(verb: Verb) -> None:
    act = e.JobCancelled("job", 5, "ada", "why")
    for way in (record, record_job):
        state = State()
        way(state, verb, "job", act)
        assert state.format == VERB_FORMATS[verb]


@rule("W16")
@pytest.mark.parametrize("verb", [verb for verb, number in VERB_FORMATS.items() if number > PLAIN_FORMAT])
@pytest.mark.parametrize("where", ["ended_by", "committed_by", "refusal", "action"])
def test_a_verb_that_is_stored_below_its_format_is_found(where: str, verb: Any) -> None:
    state = applied(ENQUEUED, HELD, e.LeaseReleased("job", "token", 6, 6))
    job = state.jobs["job"]
    assert violations(state) == []
    match where:
        case "refusal":
            job.refusals = (Refusal(verb, "token", None, None, 0, LossReason.UNKNOWN, 6),)
        case "action":
            state.actions.append(Action(6, verb, "ada", "job", "why"))
        case _:
            setattr(job.executions[-1], where, verb)
    said = f"{verb} is on record, and the format, 1, does not say so"
    assert said in violations(state)
    state.format = VERB_FORMATS[verb]
    assert said not in violations(state)


def enqueued(job_id: str, queue: str, unique: UniqueKey, at: int) -> AnyEvent:
    return e.JobEnqueued(JobSpec(job_id, queue, "kind", rules=Rules(unique=unique)), at)


def cancelled(job_id: str, at: int) -> AnyEvent:
    return e.JobCancelled(job_id, at, "ada", "why")


HELD_KEY = UniqueKey("key")
KEPT_KEY = UniqueKey("key", keep_us=100)


@rule("W16", "U1")
@pytest.mark.parametrize(
    ("events", "number"),
    [
        ([enqueued("a", "one", HELD_KEY, 5), enqueued("b", "one", UniqueKey("other"), 6)], RULES_FORMAT),
        ([enqueued("a", "one", HELD_KEY, 5), cancelled("a", 6), enqueued("b", "two", HELD_KEY, 7)], RULES_FORMAT),
        ([enqueued("a", "one", KEPT_KEY, 5), cancelled("a", 6), enqueued("b", "two", HELD_KEY, 105)], RULES_FORMAT),
        ([enqueued("a", "one", HELD_KEY, 5), enqueued("b", "two", HELD_KEY, 6)], KEYS_FORMAT),
        ([enqueued("a", "one", KEPT_KEY, 5), cancelled("a", 6), enqueued("b", "two", HELD_KEY, 104)], KEYS_FORMAT),
        (
            [
                enqueued("a", "one", HELD_KEY, 5),
                cancelled("a", 6),
                enqueued("b", "two", HELD_KEY, 7),
                e.JobRedriven("a", 8, "ada", "why"),
            ],
            KEYS_FORMAT,
        ),
    ],
)
def test_a_key_that_is_held_in_two_queues_raises_the_format(events: list[AnyEvent], number: int) -> None:
    """Versions before know one holder of a key. What they wrote, one job after another, leaves the format as it is."""
    state = applied(*events)
    assert state.format == number
    assert violations(state) == []


@rule("W16", "U1")
def test_a_key_that_is_held_in_two_queues_below_its_format_is_found() -> None:
    state = applied(enqueued("a", "one", HELD_KEY, 5), enqueued("b", "two", HELD_KEY, 6))
    state.format = RULES_FORMAT
    assert violations(state) == ["key key is held in two queues, and the format, 2, does not say so"]
