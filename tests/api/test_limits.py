"""Limits as apps declare them: their names, keys and numbers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from leasemill import App, Invalid, Limit, Rate, Throttled
from leasemill.kernel.model import SECOND, LimitTerms, LimitUse
from leasemill.store.memory import MemoryStore
from leasemill.testing.rules import rule


@pytest.fixture
def app() -> App:
    return App(store=MemoryStore())


def limits_of(app: App, job_id: str) -> tuple[LimitUse, ...]:
    job = app.store.job(job_id)
    assert job is not None
    return () if job.spec.rules is None else job.spec.rules.limits


def test_a_limit_is_the_kinds_own_by_default(app: App) -> None:
    @app.job(limit=Limit(5))
    def crawl(url: str) -> None: ...

    assert app.limits == {"crawl": LimitTerms(5)}
    assert limits_of(app, crawl.enqueue("x").id) == (LimitUse("crawl"),)


def test_a_limit_by_a_parameter_counts_for_each_value(app: App) -> None:
    @app.job(name="mail", limit=[Limit(2, by="customer"), Limit(5), Rate(2, per=1, by="customer")])
    def send(customer: int | None, text: str) -> None: ...

    assert app.limits == {"mail:customer": LimitTerms(2, 2, SECOND, 1), "mail": LimitTerms(5)}
    assert limits_of(app, send.enqueue(7, "hello").id) == (LimitUse("mail:customer", "7"), LimitUse("mail"))
    assert limits_of(app, send.enqueue(None, "hello").id) == (LimitUse("mail"),)


def test_a_limit_by_a_function_computes_its_key(app: App) -> None:
    @app.job(limit=Limit(2, by=lambda address: address.partition("@")[2], name="by-domain"))
    def send(address: str) -> None: ...

    assert limits_of(app, send.enqueue("ada@example.com").id) == (LimitUse("by-domain", "example.com"),)


def test_kinds_and_queues_share_a_limit_by_its_name(app: App) -> None:
    stripe = Limit(10, name="stripe")

    @app.job(limit=stripe)
    def charge() -> None: ...

    @app.job(queue="refunds", limit=[stripe, Rate(100, per=timedelta(minutes=1), burst=10, name="stripe")])
    def refund() -> None: ...

    assert app.limits == {"stripe": LimitTerms(10, 100, 60 * SECOND, 10)}
    assert limits_of(app, charge.enqueue().id) == limits_of(app, refund.enqueue().id) == (LimitUse("stripe"),)


def test_one_name_with_two_numbers_is_refused_where_it_is_declared(app: App) -> None:
    @app.job(limit=Limit(10, name="stripe"))
    def charge() -> None: ...

    with pytest.raises(Invalid, match="'stripe' is declared with different numbers"):

        @app.job(limit=Limit(5, name="stripe"))
        def refund() -> None: ...

    assert "refund" not in app.jobs


@rule("T9")
@pytest.mark.parametrize(
    ("limit", "says"),
    [
        (lambda: Limit(0), "1 or more"),
        (lambda: Limit(True), "1 or more"),
        (lambda: Limit(5, name="no name"), "not a name"),
        (lambda: Limit(5, name="queue:mail"), "queues' own"),
        (lambda: Limit(5, by=3), "name of a parameter"),  # type: ignore[arg-type]
        (lambda: Limit(5, by="nobody"), "not one of its parameters"),
        (lambda: Limit(5, by=lambda address: address), "needs a name"),
        (lambda: Rate(0, per=1), "1 or more"),
        (lambda: Rate(1, per=0), "more than 0"),
        (lambda: Rate(5, per=0.000001), "microsecond"),
        (lambda: Rate(5, per=1, burst=0), "at once"),
        (lambda: 5, r"write limit=Limit\(5\)"),
        (lambda: [Limit(1, name=name) for name in "abcde"], "at most 4"),
    ],
)
def test_a_limit_that_cannot_be_is_refused_with_what_to_write(app: App, limit: Any, says: str) -> None:
    with pytest.raises(Invalid, match=says):

        @app.job(limit=limit())
        def send(address: str) -> None: ...


def test_a_key_that_is_not_text_nor_a_number_is_refused_at_enqueue(app: App) -> None:
    @app.job(limit=Limit(2, by="tags"))
    def label(tags: list[str]) -> None: ...

    with pytest.raises(Invalid, match="key of limit 'label:tags'"):
        label.enqueue(["a"])


def test_throttled_names_a_limit_and_a_time() -> None:
    throttled = Throttled("api", timedelta(seconds=30))
    assert (throttled.limit, throttled.hold_us) == ("api", 30 * SECOND)
    with pytest.raises(Invalid, match="negative"):
        Throttled("api", -1)
    with pytest.raises(Invalid, match="not a name"):
        Throttled("the api", 1)


def test_a_follow_up_and_a_chained_job_are_under_their_limits(app: App) -> None:
    @app.job(limit=Limit(2, by="customer"))
    def call(customer: str) -> None: ...

    template = call.call("x").template("a callback")
    assert template.limits == (LimitUse("call:customer", "x"),)
    followup = call.followup_call("y").followup(app.hooks)
    assert followup.rules is not None
    assert followup.rules.limits == (LimitUse("call:customer", "y"),)
