"""A handler's signature as a contract: what is taken, what is refused, what the handler gets."""

from __future__ import annotations

import decimal
import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pytest

from leasemill import Context
from leasemill.api.argument_keys import key_text
from leasemill.api.arguments import Arguments
from leasemill.errors import Invalid
from leasemill.testing.rules import rule


class Colour(Enum):
    RED = "red"


@dataclass
class Line:
    sku: str
    count: int = 1


class Address(msgspec.Struct):
    city: str


def arguments_of(function: Any) -> Arguments:
    return Arguments(function, Context)


def round_trip(function: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    arguments = arguments_of(function)
    payload, _ = arguments.encode(args, kwargs)
    positional, named = arguments.decode(payload)
    return (*positional, *named.values())


def order(
    when: datetime, key: UUID, amount: Decimal, colour: Colour, line: Line, to: Address, tags: set[str], day: date
) -> None: ...


WHEN = datetime(2024, 5, 1, 12, 30, tzinfo=UTC)
ORDER: dict[str, Any] = {
    "when": WHEN,
    "key": UUID(int=7),
    "amount": Decimal("1.10"),
    "colour": Colour.RED,
    "line": Line("a", 2),
    "to": Address("Oslo"),
    "tags": {"x", "y"},
    "day": date(2024, 5, 1),
}


def test_arguments_come_back_as_their_annotations_say() -> None:
    assert round_trip(order, **ORDER) == tuple(ORDER.values())


@rule("E7")
def test_the_payload_is_an_object_sorted_by_name_so_that_parameters_may_change_places() -> None:
    def earlier(account: str, cents: int) -> None: ...
    def later(cents: int, account: str) -> None: ...

    payload, _ = arguments_of(earlier).encode(("a1", 5), {})
    assert payload == arguments_of(later).encode((5, "a1"), {})[0] == b'{"account":"a1","cents":5}'


@rule("E7")
@pytest.mark.parametrize(
    ("args", "kwargs", "sent"),
    [
        (("ada",), {}, {"to": "ada"}),
        (("ada", None), {}, {"to": "ada"}),
        (
            (),
            {"to": "ada", "cc": None, "copies": 1, "tags": [], "line": Line("a"), "rate": float("nan")},
            {"to": "ada"},
        ),
        (("ada", "bob"), {"copies": 1}, {"to": "ada", "cc": "bob"}),
        (
            ("ada",),
            {"tags": ["x"], "line": Line("a", 2)},
            {"to": "ada", "tags": ["x"], "line": {"sku": "a", "count": 2}},
        ),
        (("ada",), {"urgent": 1}, {"to": "ada", "urgent": 1}),
        (("ada",), {"urgent": 0}, {"to": "ada", "urgent": 0}),
    ],
)
def test_an_argument_that_equals_its_default_is_not_sent(
    args: tuple[Any, ...], kwargs: dict[str, Any], sent: dict[str, Any]
) -> None:
    nan = kwargs.get("rate", float("nan"))

    def send(
        to: str,
        cc: str | None = None,
        copies: int = 1,
        tags: list[str] = [],  # noqa: B006  (a handler may be written so)
        *,
        line: Line = Line("a"),  # noqa: B008
        rate: float = nan,
        urgent: bool | int = False,
    ) -> None: ...

    arguments = arguments_of(send)
    payload, values = arguments.encode(args, kwargs)
    assert json.loads(payload) == sent
    assert list(values) == ["to", "cc", "copies", "tags", "line", "rate", "urgent"]
    positional, named = arguments.decode(payload)
    got = dict(zip(values, (*positional, *named.values()), strict=True))
    assert math.isnan(got.pop("rate"))
    assert math.isnan(values.pop("rate"))
    assert got == values


@rule("E7")
def test_a_default_that_json_cannot_carry_is_never_sent() -> None:
    missing = object()

    def send(to: str, note: Any = missing, when: str = None) -> None: ...  # type: ignore[assignment] # noqa: RUF013

    arguments = arguments_of(send)
    assert arguments.encode(("ada",), {})[0] == b'{"to":"ada"}'
    assert arguments.encode(("ada",), {"note": missing})[0] == b'{"to":"ada"}'
    assert arguments.decode(b'{"to":"ada"}')[0][2] is None
    with pytest.raises(Invalid, match="Encoding objects of type object is unsupported"):
        arguments.encode(("ada",), {"note": object()})
    with pytest.raises(Invalid, match="argument 'when': Expected `str`, got `int`"):
        arguments.encode(("ada",), {"when": 1})


def test_the_same_call_is_the_same_bytes_however_it_is_written() -> None:
    def charge(account: str, cents: int = 5, *, tags: set[str] | None = None) -> None: ...

    arguments = arguments_of(charge)
    spellings: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (("a1",), {}),
        (("a1", 5), {}),
        ((), {"cents": 5, "account": "a1"}),
        ((), {"account": "a1", "tags": None}),
    ]
    assert len({arguments.encode(args, kwargs)[0] for args, kwargs in spellings}) == 1


def test_sets_and_dicts_are_written_in_one_order() -> None:
    def tagged(tags: set[str], notes: dict[str, int]) -> None: ...

    arguments = arguments_of(tagged)
    names = [f"tag{number}" for number in range(20)]
    payload, _ = arguments.encode((set(names), dict.fromkeys(reversed(names), 1)), {})
    written = json.loads(payload)
    assert written["tags"] == list(written["notes"]) == sorted(names)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"line": Line("a", "two")}, "order: argument 'line' at count: Expected `int`, got `str`"),  # type: ignore[arg-type]
        ({"amount": "many"}, "order: argument 'amount': Invalid decimal string"),
        ({"tags": ["x", 3]}, "order: argument 'tags' at [1]: Expected `str`, got `int`"),
        ({"colour": "blue"}, "order: argument 'colour': Invalid enum value 'blue'"),
        ({"when": datetime}, "order: argument 'when': Encoding objects of type type is unsupported"),
    ],
)
def test_a_wrong_argument_is_refused_with_its_name(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Invalid) as refused:
        arguments_of(order).encode((), ORDER | wrong)
    assert str(refused.value) == sentence


def charge(account: str, cents: int, note: str | None = None) -> int:
    return cents


@pytest.mark.parametrize(
    ("args", "kwargs", "sentence"),
    [
        ((), {"account": "a1"}, "charge: missing a required argument: 'cents'"),
        ((), {"account": "a1", "cents": 1, "sum": 2}, "charge: got an unexpected keyword argument 'sum'"),
        (("a1", 1, "n", 4), {}, "charge: too many positional arguments"),
        (("a1", "1"), {}, "charge: argument 'cents': Expected `int`, got `str`"),
        (("a1", True), {}, "charge: argument 'cents': Expected `int`, got `bool`"),
        ((UUID(int=1), 1), {}, "charge: argument 'account': Expected `str`, got `UUID`"),
        (("a1", 1, WHEN), {}, "charge: argument 'note': Expected `str`, got `datetime`"),
    ],
)
def test_a_wrong_call_is_refused_with_a_sentence(args: tuple[Any, ...], kwargs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence.replace("(", r"\(").replace("`", "`")):
        arguments_of(charge).encode(args, kwargs)


def test_an_argument_without_annotation_takes_any_json_value() -> None:
    def anything(value, other=None):  # type: ignore[no-untyped-def]
        ...

    assert round_trip(anything, {"b": [1, None]}) == ({"b": [1, None]}, None)


def test_an_old_payload_gets_the_defaults_of_parameters_added_since() -> None:
    def grown(account: str, lines: list[Line] = [Line("free")]) -> None: ...  # noqa: B006, B008

    arguments = arguments_of(grown)
    (account, lines), _ = arguments.decode(b'{"account":"a1"}')
    assert (account, lines) == ("a1", [Line("free")])
    lines.append(Line("more"))
    assert arguments.decode(b'{"account":"a1"}')[0][1] == [Line("free")]


def test_a_payload_with_an_unknown_argument_is_refused() -> None:
    with pytest.raises(Invalid, match=r"charge: .*unknown argument 'sum'"):
        arguments_of(charge).decode(b'{"account":"a","cents":1,"sum":2}')


def test_keyword_only_and_positional_only_parameters_are_called_as_they_must_be() -> None:
    def picky(first: int, /, second: int, *, third: int) -> tuple[int, int, int]:
        return first, second, third

    arguments = arguments_of(picky)
    payload, _ = arguments.encode((1, 2), {"third": 3})
    args, kwargs = arguments.decode(payload)
    assert picky(*args, **kwargs) == (1, 2, 3)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("def bad(*args): ...", "bad takes *args; name each parameter, or take one list"),
        ("def bad(**options): ...", "bad takes **options; name each parameter, or take one dict"),
        ("def bad():\n    yield", "bad is a generator; a handler must return its result, not yield"),
        ("async def bad():\n    yield", "bad is a generator; a handler must return its result, not yield"),
        ("def bad(thing: Thing): ...", "parameter 'thing' of bad has the type Thing, which cannot be carried as JSON"),
        ("def bad() -> list[Thing]: ...", "the result of bad has the type Thing, which cannot be carried as JSON"),
        ("def bad(a: int, ctx: Context): ...", "bad takes its Context as parameter 'ctx'; make it the first parameter"),
    ],
)
def test_a_signature_that_cannot_be_a_job_is_refused_when_it_is_declared(source: str, sentence: str) -> None:
    class Thing: ...

    namespace: dict[str, Any] = {"Thing": Thing, "Context": Context}
    exec(source, namespace)
    with pytest.raises(Invalid) as refused:
        arguments_of(namespace["bad"])
    assert str(refused.value).startswith(sentence)


def test_the_context_is_known_by_its_annotation_or_its_name() -> None:
    def annotated(context: Context, account: str) -> None: ...
    def named(ctx, account):  # type: ignore[no-untyped-def]
        ...
    def without(account: str) -> None: ...

    assert [arguments_of(it).takes_context for it in (annotated, named, without)] == [True, True, False]
    assert [arguments_of(it).names for it in (annotated, named, without)] == [("account",)] * 3


def test_an_annotation_may_name_what_is_defined_later() -> None:
    namespace: dict[str, Any] = {}
    exec("def early(line: 'Later') -> None: ...", namespace)
    arguments = arguments_of(namespace["early"])
    namespace["Later"] = Line
    assert arguments.encode((), {"line": Line("a")})[0] == b'{"line":{"sku":"a","count":1}}'


@pytest.mark.parametrize("annotation", ["int |", "int[3]", "int | 3"])
def test_an_annotation_that_can_never_be_a_type_is_refused_when_it_is_declared(annotation: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def bad(thing: {annotation!r}) -> None: ...", namespace)
    with pytest.raises(Invalid, match="an annotation of bad is not a type"):
        arguments_of(namespace["bad"])


@dataclass
class Unfinished:
    money: Money  # type: ignore[name-defined]  # noqa: F821


UNDEFINED = "cannot be resolved: name 'Money' is not defined"
REMEDY = "; define Money in the handler's module, or import it there outside `if TYPE_CHECKING:`"
NO_ATTRIBUTE = "cannot be resolved: module 'decimal' has no attribute 'Money'"


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            "def bad(money: 'list[Money]'): ...",
            f"the annotation of parameter 'money' of bad {UNDEFINED}{REMEDY}",
        ),
        (
            "def bad() -> 'decimal.Money': ...",
            f"the annotation of the result of bad {NO_ATTRIBUTE}{REMEDY}",
        ),
        (
            "def bad(line: Unfinished): ...",
            f"parameter 'line' of bad has a field whose annotation {UNDEFINED}",
        ),
    ],
)
def test_an_annotation_that_stays_undefined_is_refused_at_its_first_use_with_its_name(
    source: str, sentence: str
) -> None:
    namespace: dict[str, Any] = {"decimal": decimal, "Unfinished": Unfinished}
    exec(source, namespace)
    arguments = arguments_of(namespace["bad"])
    with pytest.raises(Invalid) as refused:
        arguments.check()
    assert str(refused.value) == sentence


def test_results_are_checked_by_the_return_annotation_and_come_back_as_it() -> None:
    def quote() -> Line: ...  # type: ignore[empty-body]

    arguments = arguments_of(quote)
    content = arguments.encode_result(Line("a", 3))
    assert arguments.decode_result(content) == Line("a", 3)
    with pytest.raises(Invalid, match="quote returned a value that does not match its annotation: Expected `object`"):
        arguments.encode_result(None)
    with pytest.raises(Invalid, match="Expected `int`, got `str`"):
        arguments.encode_result({"sku": "a", "count": "b"})


def test_nothing_is_kept_for_a_result_of_none() -> None:
    def done() -> None: ...

    assert arguments_of(done).encode_result(None) is None
    assert arguments_of(done).decode_result(None) is None


def test_a_result_that_is_too_large_is_refused_before_it_is_sent() -> None:
    def large() -> str: ...  # type: ignore[empty-body]

    with pytest.raises(Invalid, match="store it elsewhere and return a reference"):
        arguments_of(large).encode_result("x" * (1024 * 1024))


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("a1", "a1"),
        (7, "7"),
        (UUID(int=1), str(UUID(int=1))),
        (Colour.RED, "red"),
        (date(2024, 1, 2), "2024-01-02"),
        (None, None),
    ],
)
def test_a_lane_is_named_by_simple_values(value: object, key: str | None) -> None:
    assert key_text("the lane of charge", value) == key


@pytest.mark.parametrize("value", [True, 1.5, ["a"], Line("a")])
def test_a_lane_is_not_named_by_anything_else(value: object) -> None:
    with pytest.raises(Invalid, match="the lane of charge is"):
        key_text("the lane of charge", value)
