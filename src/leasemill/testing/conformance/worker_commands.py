"""O12, O13: what operators ask of workers, and when a worker is returned what it was asked."""

from __future__ import annotations

from typing import Any

import pytest

from leasemill.errors import Invalid, NotFound, Refused
from leasemill.kernel.commands import OrderWorker
from leasemill.kernel.model import WORKER_COMMANDS_KEPT, Order, Verb, WorkerOrder
from leasemill.store.worker_records import WorkerRecord, encode_record, records
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    OPERATOR,
    WHY,
    WORKER,
    claim_one,
    enqueue_and_claim,
    enqueue_many,
    extended,
    job_of,
)
from leasemill.testing.rules import rule

STALE_AT_ONCE = -1.0
"""An interval between heartbeats: a record that has it is stale when it is published."""


def publish(harness: Harness, worker: str = WORKER, instance: str = "first", **fields: Any) -> WorkerOrder | None:
    """A heartbeat of the worker."""
    return harness.store.presence.publish(worker, record_of(worker, instance, **fields))


def record_of(worker: str, instance: str, **fields: Any) -> bytes:
    given: dict[str, Any] = {"interval_s": 60.0, "takes_orders": True, "version": "0.2.0"} | fields
    record = WorkerRecord(
        worker=worker,
        host="host",
        pid=7,
        started_at=0.0,
        published_at=0.0,
        queues={"work": 1},
        concurrency=1,
        is_stopping=False,
        running=[],
        counters={},
        instance=instance,
        **given,
    )
    return encode_record(record)


def order(harness: Harness, what: Order, worker: str = WORKER, reason: str = WHY) -> WorkerOrder | None:
    return harness.store.order_worker(worker, what, by=OPERATOR, reason=reason)


def acts(harness: Harness) -> list[tuple[Verb, str, str, str]]:
    return [(act.verb, act.target, act.by, act.reason) for act in harness.store.actions()]


class Ordering:
    @rule("O12", "O13")
    @pytest.mark.parametrize("what", [Order.QUIET, Order.STOP])
    def test_a_worker_is_returned_its_order_when_it_publishes_its_record(self, harness: Harness, what: Order) -> None:
        assert publish(harness) is None
        ordered = order(harness, what)
        assert ordered == WorkerOrder("first", what, harness.clock.now(), OPERATOR, WHY)
        harness.clock.advance(s=1)
        harness.reopen()
        assert publish(harness) == ordered
        assert publish(harness) == ordered
        assert harness.store.order("first") == ordered

    @rule("O8", "O12")
    def test_every_order_is_an_action_with_who_and_why(self, harness: Harness) -> None:
        publish(harness)
        for what, reason in ((Order.QUIET, "a leak"), (Order.RESUME, "it is mended"), (Order.STOP, "moving")):
            order(harness, what, reason=reason)
            harness.clock.advance(s=1)
        assert acts(harness) == [
            (Verb.STOP_WORKER, WORKER, OPERATOR, "moving"),
            (Verb.RESUME_WORKER, WORKER, OPERATOR, "it is mended"),
            (Verb.QUIET_WORKER, WORKER, OPERATOR, "a leak"),
        ]

    @rule("O12")
    def test_the_latest_order_holds(self, harness: Harness) -> None:
        publish(harness)
        for what in (Order.QUIET, Order.RESUME, Order.QUIET, Order.STOP):
            harness.clock.advance(s=1)
            ordered = order(harness, what)
            found = publish(harness)
            assert found is not None
            assert found == ordered
            assert found.order is what

    @rule("O12")
    @pytest.mark.parametrize("what", [Order.QUIET, Order.STOP])
    def test_the_same_order_again_changes_nothing(self, harness: Harness, what: Order) -> None:
        publish(harness)
        first = order(harness, what)
        harness.clock.advance(s=1)
        assert order(harness, what, reason="once more") == first
        assert publish(harness) == first
        assert len(acts(harness)) == 1

    @rule("O12")
    def test_a_resume_changes_nothing_where_there_is_nothing_to_resume_from(self, harness: Harness) -> None:
        publish(harness)
        assert order(harness, Order.RESUME) is None
        assert publish(harness) is None
        assert acts(harness) == []

    @rule("O12")
    @pytest.mark.parametrize("what", [Order.QUIET, Order.RESUME])
    def test_a_stop_is_not_taken_back(self, harness: Harness, what: Order) -> None:
        publish(harness)
        stop = order(harness, Order.STOP)
        with pytest.raises(Refused, match="cannot be undone"):
            order(harness, what)
        assert publish(harness) == stop
        assert len(acts(harness)) == 1

    @rule("O12")
    def test_an_order_is_for_one_process_and_not_for_the_next_of_its_id(self, harness: Harness) -> None:
        publish(harness)
        order(harness, Order.STOP)
        assert publish(harness, instance="second") is None
        quiet = order(harness, Order.QUIET)
        assert quiet is not None
        assert (quiet.instance, quiet.order) == ("second", Order.QUIET)
        assert publish(harness, instance="second") == quiet

    @rule("O12")
    def test_an_order_is_for_one_worker_and_not_for_the_others(self, harness: Harness) -> None:
        publish(harness)
        publish(harness, "other", "second")
        order(harness, Order.QUIET)
        assert publish(harness, "other", "second") is None

    @rule("O12")
    def test_a_worker_that_is_gone_is_not_found(self, harness: Harness) -> None:
        publish(harness)
        harness.store.presence.remove(WORKER)
        with pytest.raises(NotFound, match=f"there is no worker {WORKER!r}"):
            order(harness, Order.STOP)
        publish(harness, interval_s=STALE_AT_ONCE)
        with pytest.raises(NotFound, match="has sent no heartbeat"):
            order(harness, Order.STOP)
        assert acts(harness) == []

    @rule("O12")
    def test_a_worker_of_a_version_without_orders_is_refused_with_what_to_do(self, harness: Harness) -> None:
        publish(harness, takes_orders=False, version="0.1.0")
        with pytest.raises(Refused, match=r"runs Leasemill 0\.1\.0, which takes no orders: stop it with SIGTERM"):
            order(harness, Order.QUIET)
        assert acts(harness) == []

    @rule("O12")
    @pytest.mark.parametrize(
        "given",
        [
            ("", "first", OPERATOR, WHY),
            (WORKER, "", OPERATOR, WHY),
            (WORKER, "first", "", WHY),
            (WORKER, "first", OPERATOR, ""),
        ],
        ids=["worker", "instance", "by", "reason"],
    )
    def test_an_order_without_whom_who_or_why_is_refused(
        self, harness: Harness, given: tuple[str, str, str, str]
    ) -> None:
        publish(harness)
        worker, instance, by, reason = given
        with pytest.raises(Invalid):
            harness.store.run(OrderWorker(worker, instance, Order.QUIET, by, reason))
        assert publish(harness) is None
        assert acts(harness) == []

    @rule("O12")
    def test_the_latest_orders_are_kept_and_older_ones_are_not(self, harness: Harness) -> None:
        publish(harness, instance="number 0")
        publish(harness, "other", "number 1")
        order(harness, Order.QUIET)
        order(harness, Order.QUIET, "other")
        order(harness, Order.RESUME)  # from now on the later of the two
        store = harness.store
        for number in range(2, WORKER_COMMANDS_KEPT + 1):
            store.presence.publish("w", record_of("w", f"number {number}"))
            store.run(OrderWorker("w", f"number {number}", Order.QUIET, OPERATOR, WHY))
        assert harness.store.order("number 1") is None
        kept = harness.store.order("number 0")
        assert kept is not None
        assert kept.order is Order.RESUME
        assert harness.store.order(f"number {WORKER_COMMANDS_KEPT}") is not None

    @rule("O13")
    def test_no_order_ends_a_lease_or_changes_a_job(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        before = job_of(harness)
        publish(harness)
        order(harness, Order.STOP)
        assert job_of(harness) == before
        extended(harness, lease)
        enqueue_many(harness, "two")
        assert claim_one(harness).worker == WORKER

    @rule("O13")
    def test_a_record_has_the_order_that_its_worker_obeys(self, harness: Harness) -> None:
        publish(harness)
        ordered = order(harness, Order.QUIET)
        publish(harness, order=ordered)
        ((record, _),) = records(harness.store.presence)
        assert record.order == ordered
        assert record.is_quiet

    @rule("O13")
    def test_a_record_that_names_no_instance_is_returned_no_order(self, harness: Harness) -> None:
        publish(harness)
        order(harness, Order.QUIET)
        for record in (b"{}", b'"text"', b'{"instance":7}'):
            assert harness.store.presence.publish(WORKER, record) is None
