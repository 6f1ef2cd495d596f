"""`WorkLease` against the document, in memory and in a folder. On PostgreSQL: tests/store/postgres."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from msgspec.structs import replace

from leasemill.api import worklease
from leasemill.api.worklease import SucceedResult, WorkLease
from leasemill.errors import Refused
from leasemill.kernel import commands as c
from leasemill.store.memory import MemoryStore
from leasemill.store.wal.options import FileOptions
from leasemill.store.wal.store import FileStore
from leasemill.testing.conformance import KeptHarness, ReopeningHarness
from leasemill.testing.rules import rule
from tests.lab.faults import SimulatedMachine
from tests.worklease.machine import compare

EXAMPLES = settings().max_examples
SMALL = FileOptions(segment_bytes=4096, does_maintenance=False)


def in_memory() -> tuple[KeptHarness, str]:
    return KeptHarness(MemoryStore), "offsets"


@rule("N12", "N8", "N9", "N10", "N11")
def test_in_memory_it_does_as_the_document_says() -> None:
    compare(in_memory, settings(max_examples=4 * EXAMPLES))


@rule("N12")
def test_so_it_does_in_a_folder_that_is_opened_again_before_every_step() -> None:
    def make() -> tuple[ReopeningHarness, str]:
        machine = SimulatedMachine()
        harness = ReopeningHarness(
            lambda clock: FileStore("no folder", options=SMALL, clock=clock, disk=machine.process(), machine=machine)
        )
        return harness, "offsets"

    compare(make, settings(max_examples=EXAMPLES // 2))


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
    with pytest.raises((AssertionError, pytest.fail.Exception, Refused, ExceptionGroup)):
        # it ends with the first finding; a repeated report is not in every history
        compare(in_memory, settings(settings.get_profile("unshrunk"), database=None, max_examples=50 * EXAMPLES))
