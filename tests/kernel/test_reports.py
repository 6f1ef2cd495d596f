"""Which commands are reports of a lease's holder is declared once, and everybody who treats them alike knows all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from leasemill.kernel import commands as c
from leasemill.kernel.commands import REPORTS, HolderReport, reports_in, with_tokens
from leasemill.kernel.machine import VERBS
from leasemill.kernel.model import REPORT_VERBS, Verb
from leasemill.testing.conformance import steps
from tests.kernel.world import REPORT_WEIGHTS

REFUSED: tuple[HolderReport | c.Death, ...] = (
    c.Start([c.StartReport("one", "t"), c.StartReport("two", "u", 5)]),
    c.Extend([c.LeaseRef("one", "t"), c.LeaseRef("two", "u")]),
    c.Commit("one", "t", b"1"),
    c.Ack([c.AckReport("one", "t", b"1"), c.AckReport("two", "u")]),
    c.Nack([c.NackReport("one", "t", "broke"), c.NackReport("two", "u", "broke")]),
    c.Release([c.ReleaseReport("one", "t"), c.ReleaseReport("two", "u", 5)]),
    c.Death([c.DeathReport("one", "t", "gone"), c.DeathReport("two", "u", "gone")]),
)


def answers(kind: Any) -> Iterator[Any]:
    """All that a type is made of: of a command, what it may return."""
    yield kind
    for part in (*get_args(kind), *getattr(kind, "__orig_bases__", ())):
        yield from answers(part)


def test_every_command_that_can_be_refused_for_its_lease_is_a_report() -> None:
    refusable = {kind for kind in VERBS if c.Lost in answers(kind)}
    assert refusable == {*REPORTS, c.Death} == {type(one) for one in REFUSED}


def test_the_type_and_the_table_name_the_same_commands_and_each_has_the_verb_of_its_name() -> None:
    assert set(get_args(HolderReport)) == set(REPORTS)
    assert [kind.__name__.lower() for kind in REPORTS] == list(REPORTS.values()) == list(REPORT_VERBS)


def test_the_tests_of_all_reports_have_a_way_to_make_each() -> None:
    assert list(steps.REPORTS) == list(REPORTS.values())
    assert set(REPORT_WEIGHTS) == {*REPORTS.values(), Verb.DEATH}


def test_the_leases_of_every_report_are_found_and_can_be_renamed() -> None:
    for command in REFUSED:
        found = [(one.job_id, one.token) for one in reports_in(command)]
        assert found == [("one", "t"), ("two", "u")][: len(found)]
        assert found
        renamed = with_tokens(command, lambda token: token + "@key")
        assert [one.token for one in reports_in(renamed)] == [f"{token}@key" for _, token in found]
        assert with_tokens(renamed, lambda token: token.removesuffix("@key")) == command
