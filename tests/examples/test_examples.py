"""The examples do as their pages describe, also when things go wrong."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import ModuleType

import pytest

from leasemill import JobState
from leasemill.testing.drain import drain, in_memory

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def loaded(path: Path) -> Iterator[ModuleType]:
    name = f"example_{path.parent.name}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[name]


@pytest.fixture
def pipeline() -> Iterator[ModuleType]:
    yield from loaded(EXAMPLES / "order_pipeline" / "pipeline.py")


def test_orders_of_a_customer_arrive_in_order_although_payments_fail(
    pipeline: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    async def pay(customer: str, total: Decimal, *, key: str) -> str:
        tried.append(key)
        if tried.count(key) < 3:
            raise ConnectionError("the bank does not answer")
        return f"{customer} paid {total}"

    monkeypatch.setattr(pipeline, "pay", pay)
    customers = ("ann", "bob", "cy")
    with in_memory(pipeline.app, seed=1) as clock:
        for number in range(12):
            pipeline.price.enqueue(pipeline.Order(number, customers[number % 3], ["pen", "book"]))
        counted = drain(pipeline.app, clock)
        assert (counted.succeeded, counted.retried, counted.failed) == (36, 24, 0)
        shipped = sorted(
            (job for job in pipeline.app.store.jobs().jobs if job.spec.kind == "ship"),
            key=lambda job: job.executions[-1].fence,
        )
        for index, customer in enumerate(customers):
            results = [job.result.decode() for job in shipped if job.spec.lane == customer and job.result]
            assert results == [
                f'"order {number} for {customer}, paid by {customer} paid 13.70"' for number in range(index, 12, 3)
            ]


def test_an_order_nobody_can_fill_ends_and_the_next_goes_on(pipeline: ModuleType) -> None:
    with in_memory(pipeline.app) as clock:
        bad = pipeline.price.enqueue(pipeline.Order(1, "ann", ["moon"]))
        good = pipeline.price.enqueue(pipeline.Order(2, "ann", ["pen"]))
        drain(pipeline.app, clock)
        assert bad.status() is JobState.FAILED
        assert good.result(0) == Decimal("1.20")
