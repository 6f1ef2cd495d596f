"""Callers that share batches, and give up waiting for one. What else a pipeline does is tested with the stores."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import pytest

from leasemill import errors
from leasemill.store.pipeline import Pipeline, Ticket

LONG_S = 30.0


class Batches:
    """Each waits until it is let go."""

    def __init__(self) -> None:
        self.taken: list[list[str]] = []
        self._go: list[threading.Event] = [threading.Event() for _ in range(5)]
        self.pipeline = Pipeline(self._run, "test")
        self._pool = ThreadPoolExecutor(8)

    def _run(self, batch: list[Ticket]) -> None:
        self.taken.append([ticket.command for ticket in batch])
        assert self._go[len(self.taken) - 1].wait(LONG_S)
        for ticket in batch:
            ticket.answer = f"{ticket.command} done"

    def call(self, name: str, within_s: float | None = None) -> Future[object]:
        return self._pool.submit(self.pipeline.run, Ticket(name), within_s)

    def let_go(self, number: int) -> None:
        self._go[number].set()

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        until = time.monotonic() + LONG_S
        while not is_so():
            assert time.monotonic() < until
            time.sleep(0.001)

    def wait_for_waiting(self, count: int) -> None:
        self.wait_for(lambda: len(self.pipeline._waiting) == count)


def test_who_gives_up_waiting_has_no_answer_and_is_in_no_batch() -> None:
    batches = Batches()
    first = batches.call("first")
    batches.wait_for(lambda: batches.taken == [["first"]])
    assert batches.call("impatient", 0.01).result(LONG_S) is None
    second = batches.call("second")
    batches.wait_for_waiting(1)
    for number in range(2):
        batches.let_go(number)
    assert (first.result(LONG_S), second.result(LONG_S)) == ("first done", "second done")
    assert batches.taken == [["first"], ["second"]]


class LateTicket(Ticket, eq=False):
    """Its time to wait is over just when it has been taken into a batch."""

    taken: threading.Event = msgspec.field(default_factory=threading.Event)
    waits_on: threading.Event = msgspec.field(default_factory=threading.Event)

    def wait(self, timeout_s: float = -1) -> bool:
        if timeout_s >= 0:
            assert self.taken.wait(LONG_S)
            return False
        self.waits_on.set()
        return super().wait(timeout_s)


def test_who_is_in_a_batch_waits_for_its_end_however_long_it_takes() -> None:
    batches = Batches()
    first = batches.call("first")
    batches.wait_for(lambda: batches.taken == [["first"]])
    second = batches.call("second")
    batches.wait_for_waiting(1)
    third = LateTicket("third")
    running = batches._pool.submit(batches.pipeline.run, third, 0.5)
    batches.wait_for_waiting(2)
    batches.let_go(0)
    batches.wait_for(lambda: batches.taken == [["first"], ["second", "third"]])
    assert not batches.pipeline.withdraw(third)
    third.taken.set()
    assert third.waits_on.wait(LONG_S)
    assert not running.done()
    batches.let_go(1)
    assert [one.result(LONG_S) for one in (first, second, running)] == ["first done", "second done", "third done"]


def test_who_is_to_lead_cannot_withdraw() -> None:
    batches = Batches()
    leader = Ticket("leader", is_leader=True)
    batches.pipeline._waiting.append(leader)
    assert not batches.pipeline.withdraw(leader)
    assert batches.pipeline._waiting == [leader]


ERRORS: tuple[errors.LeasemillError, ...] = (
    errors.LeasemillError("message"),
    errors.Refused("message"),
    errors.Invalid("message", field="kind", limit="200"),
    errors.JobConflict("job"),
    errors.LeaseLost("job", "ack", "expired", 1, 2),
    errors.QueueRefused("message"),
    errors.GroupRefused("message"),
    errors.NotFound("message"),
    errors.BacklogOrder("domain", 1, 2),
    errors.TokenMismatch("domain", 1),
    errors.LeaseNotFound("domain"),
    errors.NoResult("job", "why"),
    errors.JobFailed("job", "error"),
    errors.JobDead("job", "why"),
    errors.JobCancelled("job", "why"),
    errors.LifespanFailed("message"),
    errors.WorkerStuck("message"),
    errors.Unavailable("message"),
    errors.Broken("message"),
)


def test_every_class_of_error_is_among_those_that_callers_share() -> None:
    classes = {one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.LeasemillError)}
    assert {type(error) for error in ERRORS} == classes


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_each_caller_of_a_batch_has_an_error_of_its_own(error: errors.LeasemillError) -> None:
    error.__cause__ = OSError("cause")
    first, second = Ticket("first"), Ticket("second")
    for one in (first, second):
        one.fail(error)
    assert first.error is not None
    first.error.add_note("of the first caller alone")
    for own in (first.error, second.error):
        assert own is not error
        assert type(own) is type(error)
        assert (str(own), own.args, own.__cause__) == (str(error), error.args, error.__cause__)
        assert {name: value for name, value in vars(own).items() if name != "__notes__"} == vars(error)
    assert not hasattr(second.error, "__notes__")
