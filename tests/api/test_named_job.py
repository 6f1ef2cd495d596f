"""Jobs by name: checked where they are declared, as they are where they are not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel

from leasemill import PREVIOUS, App, Invalid, chain
from leasemill.store.memory import MemoryStore
from leasemill.testing.drain import drain


@pytest.fixture
def app() -> App:
    return App(store=MemoryStore())


def test_the_arguments_of_a_declared_kind_are_checked(app: App) -> None:
    @app.job(queue="billing", lane="account", aliases=["bill"])
    def charge(account: str, cents: int = 1) -> None: ...

    spec = app.enqueue("charge", account="ann").record().spec
    assert (spec.kind, spec.queue, spec.lane, spec.payload) == ("charge", "billing", "ann", b'{"account":"ann"}')
    assert app.named("bill").kind == "charge", "an earlier name is the job's"
    assert app.enqueue("charge", queue="slow", account="ann").record().spec.queue == "slow"
    with pytest.raises(Invalid, match="argument 'cents': Expected `int`"):
        app.enqueue("charge", account="ann", cents="many")
    with pytest.raises(Invalid, match="missing a required argument: 'account'"):
        asyncio.run(app.aenqueue("charge"))


def test_the_arguments_of_an_unknown_kind_are_sent_as_they_are(app: App) -> None:
    spec = app.enqueue("ship", queue="mail", to={"b": 1, "a": [date(2030, 1, 31)]}, kind="x").record().spec
    assert (spec.kind, spec.queue) == ("ship", "mail")
    assert spec.payload == b'{"kind":"x","to":{"a":["2030-01-31"],"b":1}}'
    assert app.enqueue("ship", queue="mail").record().spec.payload == b"{}"


def test_models_and_dataclasses_of_an_unknown_kind_are_carried_as_a_declared_one_would(app: App) -> None:
    class Address(BaseModel):
        city: str
        since: date

    @dataclass
    class Parcel:
        grams: int

    handle = app.enqueue("ship", queue="mail", to=Address(city="Ely", since=date(2030, 1, 31)), parcel=Parcel(5))
    assert handle.record().spec.payload == b'{"parcel":{"grams":5},"to":{"city":"Ely","since":"2030-01-31"}}'


def test_lane_unique_key_and_the_rest_are_given_by_hand(app: App) -> None:
    ship = app.named("ship", queue="mail")
    spec = ship.options(lane="ann", unique="ann", priority=3, timeout=60).call(to="ann").spec
    assert (spec.lane, spec.priority) == ("ann", 3)
    assert spec.rules is not None
    assert spec.rules.unique is not None
    assert not ship.options(unique="ann").enqueue(to="ann").is_duplicate
    assert ship.options(unique="ann").enqueue(to="bob").is_duplicate


def test_hooks_see_a_job_by_name(app: App) -> None:
    app.on_enqueue(lambda job: job.headers.update(trace=f"{job.kind} in {job.queue}"))
    assert app.enqueue("ship", queue="mail").record().spec.headers == {"trace": "ship in mail"}


def test_the_result_of_an_unknown_kind_is_plain_json(app: App) -> None:
    worker = App(store=app.store)

    @worker.job
    def days() -> list[date]:
        return [date(2030, 1, 31)]

    handle = app.enqueue("days", queue="default")
    drain(worker)
    assert handle.result() == ["2030-01-31"]


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        ("ship", {}, r"does not declare 'ship' \(declared: charge\): .*queue=\.\.\."),
        ("", {"queue": "mail"}, "kind"),
        ("ship", {"queue": ""}, "queue"),
        ("ship", {"queue": "mail", "to": object()}, "argument 'to'.*object"),
        ("ship", {"queue": "mail", "to": [1, object()]}, "ship: argument 'to': .*object"),
        ("ship", {"queue": "mail", "to": {"x": [float("nan")]}}, r"ship: argument 'to' at \['x'\]\[0\]: "),
    ],
)
def test_what_cannot_be_enqueued_by_name_is_refused(
    app: App, kind: str, options: dict[str, Any], sentence: str
) -> None:
    @app.job
    def charge() -> None: ...

    with pytest.raises(Invalid, match=sentence):
        app.enqueue(kind, **options)


def test_positions_mean_nothing_where_parameters_are_not_known(app: App) -> None:
    with pytest.raises(Invalid, match="its parameters are not known: pass each by name"):
        app.named("ship", queue="mail").enqueue("ann")


def test_a_parameter_called_queue_is_given_through_named(app: App) -> None:
    @app.job
    def look(queue: str) -> None: ...

    with pytest.raises(Invalid, match=r"write app\.named\('look'\)\.enqueue\(queue=\.\.\.\)"):
        app.enqueue("look", queue="mail")
    assert app.named("look").enqueue(queue="mail").record().spec.payload == b'{"queue":"mail"}'


def test_previous_is_one_argument_by_its_name(app: App) -> None:
    ship = app.named("ship", queue="mail")
    with pytest.raises(Invalid, match="pass PREVIOUS as one argument"):
        chain(ship.call(), ship.call(a=PREVIOUS, b=PREVIOUS))
    assert ship.call(a=PREVIOUS, b=1).result_name == "a"
