"""`WorkLease` and the document, side by side: the same answers, errors and sets after every step of random histories.

Every call is made by an orchestrator that was just started; time passes; tokens are right, old or made up. Here
the store is in memory; that others answer as the kernel does is in tests/differential and tests/store/postgres.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, run_state_machine_as_test
from hypothesis.stateful import rule as step
from msgspec.structs import replace

from leasemill.api import worklease
from leasemill.api.worklease import AcquireResult, SucceedResult, WorkLease
from leasemill.errors import BacklogOrder, LeaseNotFound, Refused, TokenMismatch
from leasemill.kernel import commands as c
from leasemill.kernel.commands import JobFilter
from leasemill.kernel.model import JobState
from leasemill.store.memory import MemoryStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.worklease.document import BacklogOrdering, Document, MissingLease, WrongToken

EXAMPLES = settings().max_examples
QUEUE = "offsets"
DOMAINS = ("A", "B", "a/b")
DOMAIN = st.sampled_from(DOMAINS)
OFFSET = st.integers(0, 7)
ERRORS = {MissingLease: LeaseNotFound, WrongToken: TokenMismatch}


class SideBySide(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.tokens = [f"3-{'0' * 32}", "made up"]

    def teardown(self) -> None:
        self.store.close()

    @initialize(max_retries=st.integers(0, 2))
    def begin(self, max_retries: int) -> None:
        self.document = Document(max_retries)

    @property
    def work(self) -> WorkLease:
        return WorkLease(self.store, QUEUE, max_retries=self.document.max_retries)

    @step(seconds=st.sampled_from([1, 60, 10_000_000]))
    def let_time_pass(self, seconds: int) -> None:
        self.clock.advance(s=seconds)
        self.store.expire()

    @step(domain=DOMAIN, offset=OFFSET)
    def try_acquire(self, domain: str, offset: int) -> None:
        now = datetime.fromtimestamp(self.clock.now() / 1_000_000, UTC)
        try:
            status = self.document.try_acquire(domain, offset, "the one that is drawn", now)
        except BacklogOrdering as error:
            message = f"offset {error.got} of domain '{domain}' is not next: acquire {error.expected} first"
            with pytest.raises(BacklogOrder, match=f"^{message}$"):
                self.work.try_acquire(domain, offset)
            return
        given = self.work.try_acquire(domain, offset)
        assert given.status == status
        self._compare_lease(domain, given)

    def _compare_lease(self, domain: str, given: AcquireResult) -> None:
        if given.status not in {"ACQUIRED", "ALREADY_ACQUIRED"}:
            assert given.lease is None
            return
        lease, record = given.lease, self.document.domain(domain).lease
        assert lease is not None
        assert record is not None
        if given.status == "ACQUIRED":
            assert lease.token not in self.tokens, "a token is new at every acquisition"
            self.tokens.append(lease.token)
            record.token = lease.token
        assert (lease.offset, lease.token, lease.acquired_at, lease.retry_count) == (
            record.current_offset,
            record.token,
            record.acquired_at,
            record.retry_count,
        )

    @step(domain=DOMAIN, data=st.data())
    def succeed(self, domain: str, data: st.DataObject) -> None:
        token = self._token(domain, data)
        self._compare(lambda: self.document.succeed(domain, token), lambda: self._succeed(domain, token))

    def _succeed(self, domain: str, token: str) -> Any:
        result = self.work.succeed(domain, token)
        return result.status, result.next_offset

    @step(domain=DOMAIN, data=st.data())
    def fail(self, domain: str, data: st.DataObject) -> None:
        token = self._token(domain, data)
        self._compare(lambda: self.document.fail(domain, token), lambda: self._fail(domain, token))

    def _fail(self, domain: str, token: str) -> Any:
        result = self.work.fail(domain, token)
        return result.status, result.retry_count, result.next_offset

    def _token(self, domain: str, data: st.DataObject) -> str:
        """Mostly the right one, if there is one."""
        lease = self.document.domain(domain).lease
        if lease is not None and data.draw(st.integers(0, 3)):
            return lease.token
        return data.draw(st.sampled_from(self.tokens))

    def _compare(self, expect: Callable[[], Any], give: Callable[[], Any]) -> None:
        try:
            expected = expect()
        except (MissingLease, WrongToken) as error:
            with pytest.raises(ERRORS[type(error)]):
                give()
            return
        assert give() == expected

    @invariant()
    def the_store_holds_what_the_document_says(self) -> None:
        for name, domain in self.document.domains.items():
            jobs = self.store.jobs(JobFilter(queue=QUEUE, lane=name)).jobs
            view = self.store.lane(QUEUE, name)
            found = {
                state: [job.spec.offset for job in jobs if job.state is state]
                for state in (JobState.LEASED, JobState.READY)
            }
            assert found[JobState.LEASED] == ([] if domain.lease is None else [domain.lease.current_offset])
            assert found[JobState.READY] == list(domain.backlog)
            finished, failed = ((), ()) if view is None else (view.finished, view.failed)
            assert (_numbers(finished), _numbers(failed)) == (domain.processed, domain.failed)
            assert sum(job.state is JobState.SUCCEEDED for job in jobs) <= 1, "finished offsets are ranges, not jobs"


def _numbers(ranges: tuple[tuple[int, int], ...]) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


@rule("N12", "N8", "N9", "N10", "N11")
def test_it_does_as_the_document_says() -> None:
    run_state_machine_as_test(SideBySide, settings=settings(max_examples=2 * EXAMPLES))


# The comparison itself: a mistake must be found out -------------------------------------------------------------


def answers_a_repeat(outcome: c.AckOutcome) -> SucceedResult | None:
    return SUCCEED_RESULT(replace(outcome, is_repeat=False) if isinstance(outcome, c.Acked) else outcome)


def lets_go_of_the_lease(work: WorkLease, domain: str, token: str, error: str) -> c.NackReport:
    return replace(FAILURE(work, domain, token, error), keep_lease=False, delay_us=0)


SUCCEED_RESULT = worklease._succeed_result
FAILURE = WorkLease._failure


@pytest.mark.parametrize(
    ("owner", "name", "mistake"),
    [(worklease, "_succeed_result", answers_a_repeat), (WorkLease, "_failure", lets_go_of_the_lease)],
)
def test_the_comparison_finds_a_mistake(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, mistake: Callable[..., Any]
) -> None:
    monkeypatch.setattr(owner, name, mistake)
    # it ends with the first finding; a repeated report is not in every history
    how = settings(settings.get_profile("unshrunk"), database=None, max_examples=50 * EXAMPLES)
    with pytest.raises((AssertionError, pytest.fail.Exception, Refused, ExceptionGroup)):
        run_state_machine_as_test(SideBySide, settings=how)
