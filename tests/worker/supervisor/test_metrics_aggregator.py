"""What processes sent, added up; what is not so any more goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from leasemill.worker.prometheus.catalogue import JOBS, QUEUE_JOBS, SLOTS, WORKER_INFO
from leasemill.worker.prometheus.samples import Samples, encoded
from leasemill.worker.supervisor.channel import Message
from leasemill.worker.supervisor.child import Child
from leasemill.worker.supervisor.metrics_aggregator import ASK_S, SILENT_S, MetricsAggregator


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Played(Child):
    """Without a process; what it was asked is kept."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def send(self, message: Mapping[str, Any]) -> None:
        self.asked.append(message["do"])


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def aggregator(clock: Clock) -> MetricsAggregator:
    return MetricsAggregator(clock)


def answer(jobs: int, slots: int, ready: int | None = None, queues_for_s: float = 0.0) -> Message:
    counters, gauges, queues = Samples(), Samples(), Samples()
    counters.add(JOBS, ("k", "q", "succeeded"), jobs)
    gauges.add(SLOTS, ("free",), slots)
    if ready is not None:
        queues.add(QUEUE_JOBS, ("q", "ready"), ready)
    return {
        "is": "samples",
        "counters": encoded(counters),
        "gauges": encoded(gauges),
        "queues": encoded(queues),
        "queues_for_s": queues_for_s,
    }


def counted(aggregator: MetricsAggregator) -> tuple[float, float | None, float | None]:
    """Jobs, slots, ready jobs."""
    values = aggregator.all().values
    return (
        values[JOBS.name]["k", "q", "succeeded"],
        values.get(SLOTS.name, {}).get(("free",)),
        values.get(QUEUE_JOBS.name, {}).get(("q", "ready")),
    )


def test_what_all_processes_counted_is_added_up_and_outlives_them(aggregator: MetricsAggregator) -> None:
    one, other = Played(), Played()
    aggregator.received(one, answer(3, 10, ready=7, queues_for_s=5.0))
    aggregator.received(other, answer(4, 10))
    assert counted(aggregator) == (7, 20, 7)
    aggregator.ended(one, is_death=True)
    assert counted(aggregator) == (7, 10, None)
    aggregator.received(other, answer(1, 10))
    assert counted(aggregator) == (8, 10, None)
    values = aggregator.all().values
    assert values["leasemill_process_deaths_total"] == {(): 1}
    assert values["leasemill_processes"] == {(): 1}


def test_a_process_that_stands_still_is_asked_once_and_its_gauges_go(
    aggregator: MetricsAggregator, clock: Clock
) -> None:
    child = Played()
    aggregator.ask(child)
    aggregator.received(child, answer(3, 10, ready=7, queues_for_s=4.0))
    aggregator.ask(child)
    assert child.asked == ["samples"], "not twice in a second"
    clock.now += ASK_S
    aggregator.ask(child)
    clock.now += ASK_S
    aggregator.ask(child)
    assert child.asked == ["samples"] * 2, "not again before it has answered"
    assert counted(aggregator) == (3, 10, 7)
    clock.now = 104.0
    assert counted(aggregator) == (3, 10, None), "another worker may count the queues by now"
    clock.now = 100.0 + SILENT_S
    assert counted(aggregator) == (3, None, None)


def test_every_process_has_its_own_sample_with_its_id(aggregator: MetricsAggregator) -> None:
    for number in (1, 2):
        gauges = Samples()
        gauges.add(WORKER_INFO, (f"orders.{number}",))
        message = answer(0, 10)
        aggregator.received(Played(), {**message, "gauges": encoded(gauges)})
    assert aggregator.all().values["leasemill_worker_info"] == {("orders.1",): 1, ("orders.2",): 1}
