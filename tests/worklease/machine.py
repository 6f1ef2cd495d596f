"""`WorkLease` on a store and the document, side by side: the same answers, errors and sets after every step.

Every call is made by an orchestrator that was just started; stores are opened again in between; time passes; tokens are
right, old or made up.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, run_state_machine_as_test
from hypothesis.stateful import rule as step

from leasemill.api.worklease import AcquireResult, WorkLease
from leasemill.errors import BacklogOrder, LeaseNotFound, TokenMismatch
from leasemill.kernel.commands import JobFilter
from leasemill.kernel.model import JobState
from leasemill.testing.conformance import Harness
from tests.worklease.document import BacklogOrdering, Document, MissingLease, WrongToken

DOMAINS = ("A", "B", "a/b")
DOMAIN = st.sampled_from(DOMAINS)
OFFSET = st.integers(0, 7)
ERRORS = {MissingLease: LeaseNotFound, WrongToken: TokenMismatch}


class ClosedHarness(Harness, Protocol):
    def close(self) -> None: ...


MakeHarness = Callable[[], tuple[ClosedHarness, str]]
"""A harness, and the name of a queue nobody has used on it."""


class SideBySide(RuleBasedStateMachine):
    make: MakeHarness

    def __init__(self) -> None:
        super().__init__()
        self.harness, self.queue = type(self).make()
        self.tokens = [f"3-{'0' * 32}", "made up"]

    def teardown(self) -> None:
        self.harness.close()

    @initialize(max_retries=st.integers(0, 2))
    def begin(self, max_retries: int) -> None:
        self.document = Document(max_retries)

    @property
    def work(self) -> WorkLease:
        return WorkLease(self.harness.store, self.queue, max_retries=self.document.max_retries)

    @step()
    def open_again(self) -> None:
        self.harness.reopen()

    @step(seconds=st.sampled_from([1, 60, 10_000_000]))
    def let_time_pass(self, seconds: int) -> None:
        self.harness.clock.advance(s=seconds)
        self.harness.store.expire()

    @step(domain=DOMAIN, offset=OFFSET)
    def try_acquire(self, domain: str, offset: int) -> None:
        now = datetime.fromtimestamp(self.harness.clock.now() / 1_000_000, UTC)
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
        store = self.harness.store
        for name, domain in self.document.domains.items():
            jobs = store.jobs(JobFilter(queue=self.queue, lane=name)).jobs
            view = store.lane(self.queue, name)
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


def compare(make: MakeHarness, how: settings) -> None:
    """Run the two side by side in random histories."""
    machine = type("SideBySideHere", (SideBySide,), {"make": staticmethod(make)})
    run_state_machine_as_test(machine, settings=how)
