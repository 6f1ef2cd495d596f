"""What a job's page is made of: its timeline, its advice, and what is left out of its payload."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from leasemill.api.redaction import REDACTED, SHOWN_CHARACTERS, Redaction
from leasemill.dashboard.advice import advised
from leasemill.dashboard.jinja_environment import (
    address,
    ago,
    amount,
    coarse,
    last_digits,
    pace,
    pieces,
    rate,
    readable,
)
from leasemill.dashboard.timeline import SHOWN, Timeline, extended_us, last_extended_at, timeline
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec, Policy
from leasemill.store.memory import MemoryStore
from leasemill.testing.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Iterator[MemoryStore]:
    with MemoryStore(clock) as opened:
        yield opened


def drawn(store: MemoryStore, clock: ManualClock, job_id: str = "one") -> Timeline:
    job = store.job(job_id)
    assert job is not None
    return timeline(job, clock.now())


# The timeline ----------------------------------------------------------------------------------------------------


def test_attempts_are_drawn_to_scale(store: MemoryStore, clock: ManualClock) -> None:
    store.enqueue([JobSpec("one", "mail", "send", policy=Policy(lease_ttl_us=20 * SECOND))])
    clock.advance(s=10)
    (lost,) = store.claim("slow", ["mail"], 1)
    clock.advance(s=5)
    store.start([c.StartReport("one", lost.token)])
    clock.advance(s=15)
    store.expire()
    (lease,) = store.claim("quick", ["mail"], 1)
    store.start([c.StartReport("one", lease.token)])
    clock.advance(s=5)
    store.commit("one", lease.token)
    clock.advance(s=5)
    store.ack([c.AckReport("one", lease.token)])
    clock.advance(s=10)
    store.ack([c.AckReport("one", lost.token)])  # refused, 50 s after the enqueue
    found = drawn(store, clock)
    first, second = found.rows
    assert (first.outcome, first.tone, first.ran_us) == ("expired", "warned", 15 * SECOND)
    assert (second.outcome, second.tone, second.ran_us) == ("done", "succeeded", 10 * SECOND)
    assert [(bar.tone, bar.left, bar.width) for bar in first.bars] == [
        ("held", 20.0, 40.0),
        ("taken", 20.0, 10.0),
        ("warned", 30.0, 30.0),
    ]
    assert [(sign.shape, sign.left) for sign in first.signs] == [
        ("tick", 20.0),
        ("tick", 30.0),
        ("dot", 60.0),
        ("cross", 100.0),
    ]
    assert ("diamond", 70.0) in [(sign.shape, sign.left) for sign in second.signs]
    assert [(bar.left, bar.width) for bar in found.waits] == [(0.0, 20.0)]
    assert found.ticks[0] == (0.0, "0")
    assert found.ticks[1] == (20.0, "+10 s")


def test_the_last_extension_of_a_lease_is_drawn_where_it_was(store: MemoryStore, clock: ManualClock) -> None:
    """Extensions are not recorded one by one: no more than the last is drawn."""
    store.enqueue([JobSpec("one", "mail", "send", policy=Policy(lease_ttl_us=20 * SECOND))])
    (lease,) = store.claim("worker", ["mail"], 1)
    store.start([c.StartReport("one", lease.token)])
    assert not drawn(store, clock).has_extension
    for _ in range(3):
        clock.advance(s=10)
        store.extend([c.LeaseRef("one", lease.token)])
    found = drawn(store, clock)  # 50 s: from the enqueue to the end of the lease
    (row,) = found.rows
    assert found.has_extension
    assert [sign.left for sign in row.signs if sign.shape == "chevron"] == [60.0]
    assert (extended_us(row.execution), last_extended_at(row.execution)) == (30 * SECOND, clock.now())
    clock.advance(s=5)
    store.ack([c.AckReport("one", lease.token)])
    (ended,) = drawn(store, clock).rows
    assert [sign.shape for sign in ended.signs] == ["tick", "tick", "chevron", "diamond", "dot"]


def test_a_lease_without_an_end_is_never_extended(store: MemoryStore, clock: ManualClock) -> None:
    store.acquire([c.AcquireRequest("shards", "a", 0, "worker", "token-1")])
    (job,) = store.jobs().jobs
    clock.advance(s=60)
    (row,) = timeline(job, clock.now()).rows
    assert last_extended_at(row.execution) is None


def test_a_job_that_runs_is_drawn_until_its_lease_ends(store: MemoryStore, clock: ManualClock) -> None:
    store.enqueue([JobSpec("one", "mail", "send", policy=Policy(lease_ttl_us=20 * SECOND))])
    store.claim("worker", ["mail"], 1)
    clock.advance(s=5)
    found = drawn(store, clock)
    assert found.ended_at - found.began_at == 20 * SECOND
    assert [(bar.tone, bar.width) for bar in found.rows[0].bars] == [("held", 100.0), ("taken", 25.0)]
    assert found.rows[0].outcome == "leased"


def test_of_many_attempts_the_first_and_the_latest_are_drawn(store: MemoryStore, clock: ManualClock) -> None:
    store.enqueue([JobSpec("one", "mail", "send", policy=Policy(max_retries=100))])
    for _ in range(SHOWN + 5):
        (lease,) = store.claim("worker", ["mail"], 1)
        store.nack([c.NackReport("one", lease.token, "again", delay_us=0)])
        clock.advance(s=1)
    found = drawn(store, clock)
    assert [row.execution.attempt for row in found.rows] == [1, *range(7, SHOWN + 6)]
    assert found.dropped == 5


def test_a_job_that_was_never_claimed_has_no_attempts(store: MemoryStore, clock: ManualClock) -> None:
    store.enqueue([JobSpec("one", "mail", "send")])
    assert drawn(store, clock).rows == []


# Advice ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "buttons"),
    [
        ("leasemill queues resume mail --reason …", [("/acts/resume-queue", {"queue": "mail"})]),
        ("leasemill jobs redrive --id 'a b' --reason …", [("/acts/redrive-jobs", {"job": "a b"})]),
        ("leasemill jobs cancel one --reason …", [("/acts/cancel-jobs", {"job": "one"})]),
        ("leasemill jobs explain two", [("/job", {"id": "two"})]),
        ("leasemill limits show gateway", [("/limits", {"name": "gateway"})]),
        ("leasemill workers", [("/workers", {})]),
        ("leasemill cron resume nightly --reason …", [("/acts/resume-schedule", {"name": "nightly"})]),
        ("leasemill cron backfill nightly --from 2030-01-31T03:00:00Z", [("/schedules", {"name": "nightly"})]),
        ("leasemill groups show import", [("/groups", {"id": "import"})]),
        ("leasemill lanes unblock mail ann --how redrive|cancel|purge --reason …", []),
        ("Enqueue it into a queue that workers claim from.", []),
        ("it's not a command", []),
    ],
)
def test_advice_has_buttons(line: str, buttons: list[tuple[str, dict[str, str]]]) -> None:
    found = advised(line)
    assert found.text == line
    assert [(one.path, one.fields) for one in found.acts] == buttons


def test_a_blocked_lane_is_unblocked_by_its_head(store: MemoryStore) -> None:
    store.enqueue([JobSpec("head", "mail", "send")])
    found = advised("leasemill lanes unblock mail ann --how redrive|cancel|purge --reason …", store.job("head"))
    assert [(one.act, one.fields) for one in found.acts] == [
        (f"{verb}-jobs", {"job": "head"}) for verb in ("redrive", "cancel", "purge")
    ]


# Redaction -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        *("password", "PASSWORD", "user_password", "secret", "clientSecret", "token", "access-token", "Authorization"),
        *("api_key", "apikey", "API-KEY", "cookie", "Set-Cookie", "private_key", "session_id", "card_number", "cvv"),
    ],
)
def test_values_under_keys_that_look_like_secrets_are_left_out(key: str) -> None:
    content = msgspec.json.encode({"order": 7, "nested": [{key: {"deep": "hunter2"}}], key: "hunter2"})
    shown = Redaction().document(content)
    assert b"hunter2" not in shown
    decoded = msgspec.json.decode(shown)
    assert decoded["order"] == 7
    assert decoded[key] == REDACTED


@pytest.mark.parametrize("key", ["order", "name", "to", "key", "body", "author"])
def test_other_values_are_shown(key: str) -> None:
    assert b"seven" in Redaction().document(msgspec.json.encode({key: "seven"}))


def test_the_rule_is_the_callers() -> None:
    rule = Redaction(["iban"])
    assert rule.hides("customer_IBAN")
    assert not rule.hides("password")
    assert not Redaction([]).hides("password")


def test_what_is_no_json_is_shown_as_it_is_and_cut() -> None:
    text, is_cut = Redaction().text(b"not json")
    assert (text, is_cut) == ("not json", False)
    long, is_cut = Redaction().text(msgspec.json.encode("x" * 2 * SHOWN_CHARACTERS))
    assert is_cut
    assert len(long) == SHOWN_CHARACTERS


# Words -----------------------------------------------------------------------------------------------------------


def test_times_are_written_coarsely() -> None:
    now = 1_000 * SECOND
    assert ago(now - 5_400_000, now) == "5 s ago"
    assert ago(now - 100, now) == "now"
    assert ago(now + 90 * SECOND, now) == "in 1 min"
    assert ago(None, now) == "–"
    assert coarse(3 * 3_600 * SECOND) == "3.0 h"


def test_rates_have_as_many_digits_as_it_takes() -> None:
    assert [rate(value) for value in (None, 0, 3, 0.5, 12.34, 1_234.5)] == ["–", "0", "3", "0.50", "12.3", "1,234"]


def test_a_slow_pace_is_written_in_minutes_or_hours() -> None:
    """Not as 0.00/s."""
    assert [pace(value) for value in (5, 1.5, 0.5, 100 / 60, 1 / 60, 1 / 3_600)] == [
        *("5/s", "1.50/s", "30/min", "1.67/s", "1/min", "1/h"),
    ]


def test_an_address_leaves_out_what_is_empty() -> None:
    assert address("/root", "/jobs", state=["failed", "dead"], kind=None, lane="", id="a/b") == (
        "/root/jobs?state=failed&state=dead&id=a%2Fb"
    )


def test_a_token_is_shown_by_its_last_digits() -> None:
    assert last_digits("abcdefghijklmnop") == "…klmnop"


def test_an_explanation_is_read_to_the_second() -> None:
    assert readable("leased at 2030-03-17T18:01:16.050000Z by web-1") == "leased at 2030-03-17 18:01:16 by web-1"
    assert readable("tick 2030-03-17T18:01:16Z") == "tick 2030-03-17T18:01:16Z"


def test_an_instant_in_an_explanation_is_a_piece_of_its_own() -> None:
    found = pieces("leased at 2030-03-17T18:01:16.050000Z by 'web 1'")
    assert found == [("leased at ", False), ("2030-03-17 18:01:16", True), (" by 'web 1'", False)]


def test_a_name_from_right_to_left_is_isolated_from_the_sentence_around_it() -> None:
    assert pieces("group 'مرحبا': 5 members") == [("group \u2068'مرحبا'\u2069: 5 members", False)]


def test_progress_is_written_in_full() -> None:
    """Not as 1.25e+06."""
    values = (0, 412_000.0, 1_250_000, 0.5, 1_234.567, float("inf"))
    assert [amount(value) for value in values] == ["0", "412,000", "1,250,000", "0.50", "1,234.57", "inf"]


def test_the_key_of_a_timeline_names_what_is_drawn(store: MemoryStore, clock: ManualClock) -> None:
    store.enqueue([JobSpec("one", "mail", "send")])
    (lease,) = store.claim("worker", ["mail"], 1)
    clock.advance(s=1)
    assert drawn(store, clock).drawn == {"held", "taken", "tick"}
    store.start([c.StartReport("one", lease.token)])
    clock.advance(s=1)
    assert drawn(store, clock).drawn == {"held", "taken", "leased", "tick"}
    store.nack([c.NackReport("one", lease.token, "no")])
    assert drawn(store, clock).drawn == {"held", "taken", "failed", "tick", "dot"}
