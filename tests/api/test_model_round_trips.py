"""Whatever a model holds: it arrives equal, and equal models are the same bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import attrs
import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from leasemill import Context
from leasemill.api.arguments import Arguments


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Card(BaseModel):
    kind: Literal["card"] = "card"
    number: str


class Bank(BaseModel):
    kind: Literal["bank"] = "bank"
    iban: str | None


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")

    name: str = Field(alias="theName")
    count: int
    ratio: float
    flag: bool | None
    amount: Decimal
    at: datetime
    day: date
    clock: time
    span: timedelta
    key: UUID
    colour: Colour
    content: bytes
    tags: set[str]
    ranks: frozenset[int]
    pair: tuple[int, str]
    by_number: dict[int, list[str]]
    notes: dict[str, Any]
    payments: list[Annotated[Card | Bank, Field(discriminator="kind")]]
    choice: int | str | list[bool]


@dataclass
class Flat:
    name: str
    count: int
    ratio: float
    amount: Decimal
    at: datetime
    span: timedelta
    key: UUID
    colour: Colour
    content: bytes
    tags: set[str]
    by_name: dict[str, list[int]]


@attrs.define
class Boxed:
    flat: Flat
    others: list[Flat | None]


class Packed(msgspec.Struct):
    flats: dict[str, Flat]
    pair: tuple[int, str]


# JSON in the log and in PostgreSQL is UTF-8: text without lone surrogates.
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9)
INSTANTS = st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
SPANS = st.timedeltas(timedelta(days=-1000), timedelta(days=1000))
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
ORDERS = st.fixed_dictionaries(
    {
        "theName": TEXTS,
        "count": INTEGERS,
        "ratio": FLOATS,
        "flag": st.none() | st.booleans(),
        "amount": DECIMALS,
        "at": INSTANTS,
        "day": st.dates(),
        "clock": st.times(),
        "span": SPANS,
        "key": st.uuids(),
        "colour": st.sampled_from(Colour),
        "content": st.binary(max_size=8),
        "tags": st.sets(TEXTS, max_size=4),
        "ranks": st.frozensets(INTEGERS, max_size=4),
        "pair": st.tuples(INTEGERS, TEXTS),
        "by_number": st.dictionaries(INTEGERS, st.lists(TEXTS, max_size=2), max_size=3),
        "notes": st.dictionaries(TEXTS, JSON_VALUES, max_size=3),
        "payments": st.lists(st.builds(Card, number=TEXTS) | st.builds(Bank, iban=st.none() | TEXTS), max_size=3),
        "choice": INTEGERS | TEXTS | st.lists(st.booleans(), max_size=2),
    }
).map(Order.model_validate)
FLATS = st.builds(
    Flat, name=TEXTS, count=INTEGERS, ratio=FLOATS, amount=DECIMALS, at=INSTANTS, span=SPANS, key=st.uuids(),
    colour=st.sampled_from(Colour), content=st.binary(max_size=8), tags=st.sets(TEXTS, max_size=4),
    by_name=st.dictionaries(TEXTS, st.lists(INTEGERS, max_size=2), max_size=3),
)  # fmt: skip

# Pydantic writes the bytes of a dataclass as UTF-8.
TEXT_FLATS = FLATS.map(lambda flat: replace(flat, content=flat.content.hex().encode()))


def arguments_of(annotation: Any) -> Arguments:
    def take(value): ...  # type: ignore[no-untyped-def]

    take.__annotations__ = {"value": annotation}
    return Arguments(take, Context)


def check(arguments: Arguments, value: object) -> None:
    payload, _ = arguments.encode((value,), {})
    ((arrived,), _) = arguments.decode(payload)
    assert arrived == value
    assert type(arrived) is type(value)
    assert arguments.encode((arrived,), {})[0] == payload


ORDER = arguments_of(Order)
ANY_OF = arguments_of(dict[str, Order | Flat | list[int]])
FLAT, BOXED, PACKED = arguments_of(Flat), arguments_of(Boxed), arguments_of(Packed)


@settings(max_examples=40, deadline=None)
@given(ORDERS)
def test_a_model_arrives_as_it_was_given(order: Order) -> None:
    check(ORDER, order)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(TEXTS, ORDERS | TEXT_FLATS | st.lists(INTEGERS, max_size=2), max_size=2))
def test_a_union_of_models_and_others_arrives_as_it_was_given(value: object) -> None:
    check(ANY_OF, value)


@settings(max_examples=40, deadline=None)
@given(ORDERS)
def test_equal_models_are_the_same_bytes_whatever_the_order_of_their_parts(order: Order) -> None:
    turned = order.model_copy(
        update={
            "notes": dict(reversed(order.notes.items())),
            "by_number": dict(reversed(order.by_number.items())),
        }
    )
    assert ORDER.encode((turned,), {})[0] == ORDER.encode((order,), {})[0]


@settings(max_examples=40, deadline=None)
@given(ORDERS)
def test_the_json_form_is_the_same_bytes(order: Order) -> None:
    payload, _ = ORDER.encode((order,), {})
    assert ORDER.encode((msgspec.json.decode(payload)["value"],), {})[0] == payload


@settings(max_examples=40, deadline=None)
@given(first=FLATS, second=FLATS)
def test_classes_with_fields_arrive_as_they_were_given(first: Flat, second: Flat) -> None:
    check(FLAT, first)
    check(BOXED, Boxed(first, [second, None]))
    check(PACKED, Packed({"a": first, "b": second}, (1, "x")))
