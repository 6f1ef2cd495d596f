"""Commands and answers survive the way there and back; every type that can travel does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasemill.kernel import commands as c
from leasemill.kernel.model import ChainedJob, JobSpec, LimitUse, OnFailure, Policy, Rules, UniqueKey, UniqueUntil
from leasemill.wire.codec import decode_answer, decode_request, encode_answer, encode_request
from leasemill.wire.routes import BY_COMMAND, ROUTES

COMMANDS = {one for one in vars(c).values() if isinstance(one, type) and issubclass(one, c.Command)} - {c.Command}

names = st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9_.:-]{0,20}\Z")
texts = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=20)
json_texts = st.sampled_from([b"{}", b"null", b"[1, 2]", '"ä\U0001f600"'.encode(), b'{"a":{"b":1e-3}}', b"0"])
instants = st.integers(0, 2**52)
policies = st.builds(
    Policy,
    max_retries=st.none() | st.integers(0, 1_000),
    lease_ttl_us=st.none() | st.integers(1_000, 10**9),
    on_failure=st.none() | st.sampled_from(OnFailure),
)
uniques = st.builds(
    UniqueKey, key=texts, until=st.sampled_from(UniqueUntil), keep_us=instants.map(lambda it: it % 10**9)
)
chained = st.builds(ChainedJob, queue=names, kind=names, payload=json_texts, policy=st.none() | policies)
rules = st.builds(
    Rules,
    unique=st.none() | uniques,
    limits=st.lists(st.builds(LimitUse, name=names), max_size=2).map(tuple),
    chain=st.lists(chained, max_size=2).map(tuple),
)
specs = st.builds(
    JobSpec,
    id=texts,
    queue=names,
    kind=names,
    payload=json_texts,
    lane=st.none() | texts,
    priority=st.integers(0, 9),
    policy=st.none() | policies,
    headers=st.none() | st.dictionaries(names, texts, max_size=2),
    rules=st.none() | rules,
)
refs = {"job_id": texts, "token": texts}
commands = st.one_of(
    st.builds(c.Enqueue, jobs=st.lists(specs, max_size=3)),
    st.builds(c.Ack, reports=st.lists(st.builds(c.AckReport, **refs, result=st.none() | json_texts), max_size=3)),
    st.builds(
        c.Nack,
        reports=st.lists(
            st.builds(c.NackReport, **refs, error=texts, jitter=st.floats(0, 0.99), is_permanent=st.booleans()),
            max_size=3,
        ),
    ),
    st.builds(
        c.Commit,
        **refs,
        result=st.none() | json_texts,
        followups=st.lists(st.builds(c.Followup, queue=names, kind=names, payload=json_texts), max_size=2),
    ),
    st.builds(
        c.Claim,
        worker=texts,
        queues=st.lists(names, min_size=1, max_size=3),
        limit=st.integers(1, 3),
        tokens=st.lists(texts, max_size=3),
        request_id=st.none() | texts,
        kinds=st.dictionaries(names, policies, max_size=2),
    ),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(commands)
def test_a_command_arrives_as_it_was_sent(command: c.Command[Any]) -> None:
    route = BY_COMMAND[type(command)]
    assert decode_request(route, encode_request(route, command)).command == command


def test_every_command_of_the_kernel_has_a_route() -> None:
    assert COMMANDS - {route.command for route in ROUTES} == set()
    assert len({route.path for route in ROUTES}) == len(ROUTES)


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (c.Acquire, [c.Backlogged("a"), c.OutOfOrder(c.LaneHint("b", 7))]),
        (c.Enqueue, [c.Enqueued("a"), c.Duplicate("b"), c.Conflict("c"), c.Merged("d", is_replaced=True)]),
        (c.GetSchedule, None),
        (c.ResumeSchedule, c.ScheduleMoved("s", None)),
        (c.Backfill, c.ScheduleMoved("s", None)),
        (c.Backfill, [c.Enqueued("a")]),
        (c.FireNow, c.Enqueued("a")),
        (c.DueIn, 2**62),
        (c.Pause, None),
        (c.GetLane, c.LaneView("q", "l", None, False, 3, ((1, 4), (6, 6)), ())),
    ],
)
def test_an_answer_arrives_as_it_was_given(command: type[c.Command[Any]], answer: object) -> None:
    route = BY_COMMAND[command]
    assert decode_answer(route, encode_answer(route, answer)) == answer


def test_what_is_drawn_for_one_call_is_not_claimed_of_its_repeat() -> None:
    route = BY_COMMAND[c.Enqueue]
    assert decode_request(route, encode_request(route, c.Enqueue([], are_new=True))).command == c.Enqueue([])
