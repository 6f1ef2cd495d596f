"""T: limits. How their numbers are set, by operators and by code, and the limits of queues."""

from __future__ import annotations

from typing import Any

import pytest

from leasemill.errors import Invalid, QueueRefused
from leasemill.kernel.model import QUEUE_LIMIT, SECOND, JobState, LimitTerms, Rules, Verb
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.limits import (
    STRIPE,
    clear_limit,
    counts,
    declare,
    ids,
    limit_of,
    set_limit,
    under,
)
from leasemill.testing.conformance.steps import (
    OFFSETS,
    OPERATOR,
    QUEUE,
    WHY,
    WORKER,
    acked,
    acquire_one,
    claim,
    claim_ids,
    claim_nothing,
    enqueue_many,
    enqueue_one,
    spec,
    state_of,
)
from leasemill.testing.rules import rule


class LimitNumbers:
    @rule("T6")
    def test_a_number_holds_for_the_claims_that_follow(self, harness: Harness) -> None:
        set_limit(harness, places=3)
        enqueue_many(harness, *"abcdefgh", rules=under(STRIPE))
        held = claim(harness, 10)
        assert len(held) == 3
        set_limit(harness, places=1)
        assert state_of(harness, "a") is JobState.LEASED
        claim_nothing(harness)
        acked(harness, held[0])
        acked(harness, held[1])
        claim_nothing(harness)
        acked(harness, held[2])
        assert claim_ids(harness) == ["d"]
        set_limit(harness, places=3)
        assert claim_ids(harness) == ["e", "f"]
        clear_limit(harness)
        assert claim_ids(harness) == ["g", "h"]

    @rule("T6")
    def test_a_name_without_numbers_is_no_limit_and_no_places_is_one(self, harness: Harness) -> None:
        enqueue_many(harness, "a", "b", rules=under("unknown"))
        assert claim_ids(harness) == ["a", "b"]
        set_limit(harness, places=0)
        enqueue_one(harness, "c", rules=under(STRIPE))
        claim_nothing(harness)
        assert harness.store.due_in([QUEUE]) is None

    @rule("T6")
    def test_what_an_operator_set_comes_before_what_code_declares(self, harness: Harness) -> None:
        declare(harness, places=5, rate=100, per_us=SECOND)
        assert limit_of(harness).terms == LimitTerms(5, 100, SECOND)
        set_limit(harness, places=2)
        assert limit_of(harness).terms == LimitTerms(2, 100, SECOND)
        declare(harness, places=7)
        assert limit_of(harness).terms == LimitTerms(2)
        set_limit(harness, rate=3, per_us=SECOND, burst=2)
        assert limit_of(harness).terms == LimitTerms(2, 3, SECOND, 2)
        record = limit_of(harness).record
        assert (record.declared, record.declared_by, record.set_by, record.reason) == (
            LimitTerms(7),
            WORKER,
            OPERATOR,
            WHY,
        )
        clear_limit(harness)
        assert limit_of(harness).terms == LimitTerms(7)
        assert limit_of(harness).record.set is None

    @rule("T6", "O8")
    def test_every_change_is_on_record_and_a_repeat_is_none(self, harness: Harness) -> None:
        for places in (5, 5, 6):
            declare(harness, places=places)
        for places in (2, 2):
            set_limit(harness, places=places)
        clear_limit(harness)
        clear_limit(harness)
        assert [(action.verb, action.target, action.by) for action in harness.store.actions()] == [
            (Verb.CLEAR_LIMIT, STRIPE, OPERATOR),
            (Verb.SET_LIMIT, STRIPE, OPERATOR),
            (Verb.DECLARE_LIMIT, STRIPE, WORKER),
            (Verb.DECLARE_LIMIT, STRIPE, WORKER),
        ]

    @rule("T6")
    def test_a_worker_declares_without_removing_what_it_does_not_name(self, harness: Harness) -> None:
        declare(harness, "one", places=1)
        declare(harness, "two", places=2)
        assert [(view.name, view.terms.places) for view in harness.store.limits()] == [("one", 1), ("two", 2)]
        assert [view.name for view in harness.store.limits(limit=1, after="one")] == ["two"]
        assert harness.store.limit("three") is None

    @rule("T9")
    @pytest.mark.parametrize(
        ("rules", "says"),
        [
            (under("a", "b", "c", "d", "e"), "at most 4"),
            (under("queue:mail"), "queues' own"),
            (under("no name"), "not a name"),
            (under("a/x", "a/x"), "twice"),
        ],
        ids=["five", "a queue's", "no name", "twice"],
    )
    def test_limits_out_of_bounds_are_refused(self, harness: Harness, rules: Rules, says: str) -> None:
        with pytest.raises(Invalid, match=says):
            harness.store.enqueue([spec(rules=rules)])
        assert harness.store.job("job") is None

    @rule("T6")
    @pytest.mark.parametrize(
        ("name", "terms", "says"),
        [
            (STRIPE, {}, "without numbers"),
            (STRIPE, {"places": -1}, "places"),
            (STRIPE, {"rate": 5}, "per_us"),
            (STRIPE, {"burst": 5}, "no rate"),
            (STRIPE, {"rate": 0, "per_us": SECOND}, "rate"),
            (STRIPE, {"rate": 2, "per_us": 1}, "one in a microsecond"),
            (STRIPE, {"rate": 1, "per_us": SECOND, "burst": 0}, "burst"),
            ("queue:work", {"rate": 1, "per_us": SECOND}, "has places"),
            ("queue:no name", {"places": 1}, "not a name"),
        ],
    )
    def test_numbers_out_of_bounds_are_refused(
        self, harness: Harness, name: str, terms: dict[str, Any], says: str
    ) -> None:
        with pytest.raises(Invalid, match=says):
            set_limit(harness, name, **terms)
        assert harness.store.limits() == []

    @rule("T1", "T6")
    def test_a_queues_own_limit_counts_its_leases(self, harness: Harness) -> None:
        enqueue_many(harness, *"abcde")
        enqueue_one(harness, "elsewhere", queue="other")
        first, *_ = claim(harness, 2)
        name = QUEUE_LIMIT + QUEUE
        set_limit(harness, name, places=3)
        assert ids(claim(harness, 10, queues=[QUEUE, "other"])) == ["c", "elsewhere"]
        claim_nothing(harness)
        assert harness.store.due_in([QUEUE]) is None
        assert counts(harness, name) == (3, 2)
        acked(harness, first)
        assert harness.store.due_in([QUEUE]) == 0
        assert claim_ids(harness) == ["d"]
        clear_limit(harness, name)
        assert claim_ids(harness) == ["e"]

    @rule("T1", "I7")
    def test_a_queue_that_is_used_with_acquire_has_no_limit(self, harness: Harness) -> None:
        acquire_one(harness, 1)
        with pytest.raises(QueueRefused, match="acquire"):
            set_limit(harness, QUEUE_LIMIT + OFFSETS, places=1)
