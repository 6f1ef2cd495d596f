"""Models and other declared types as arguments and results: what arrives is what was given, or the call is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypeVar, cast
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, SecretStr
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict

from leasemill import PREVIOUS, App, Context, JobConflict, Limit, NoResult, Unique, chain
from leasemill.api.arguments import Arguments
from leasemill.errors import Invalid
from leasemill.testing.drain import drain, in_memory

T = TypeVar("T")


class Size(StrEnum):
    SMALL = "small"


class Rank(IntEnum):
    FIRST = 1


class Colour(Enum):
    RED = "red"


class Line(BaseModel):
    sku: str
    price: int = 1


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")

    number: UUID = Field(default_factory=uuid4)
    customer: str = Field(alias="customerName")
    lines: list[Line] = []
    tags: set[str] = set()
    notes: dict[str, Any] = {}
    by_rank: dict[int, Line] = {}
    due: datetime | None = None
    weight: Decimal = Decimal("1.50")
    size: Size = Size.SMALL

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> int:
        return sum(line.price for line in self.lines)


class Page(BaseModel, Generic[T]):
    items: list[T]
    following: int | None = None


class Card(BaseModel):
    kind: Literal["card"] = "card"
    number: str


class Bank(BaseModel):
    kind: Literal["bank"] = "bank"
    iban: str


Payment = Annotated[Card | Bank, Field(discriminator="kind")]


class Names(RootModel[dict[str, frozenset[str]]]): ...


@pydantic_dataclass
class Stop:
    city: str
    minutes: Annotated[int, Field(gt=0)] = 1

    @pydantic.field_validator("city")
    @classmethod
    def _trimmed(cls, city: str) -> str:
        return city.strip()


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Place:
    x: int
    name: str = ""


@dataclass
class Parcel:
    """A dataclass with a model in it."""

    order: Order
    at: Point


@attrs.define
class Box:
    width: int = attrs.field(validator=attrs.validators.gt(0))
    contents: list[str] = attrs.Factory(list)


class Address(TypedDict):
    city: str
    zip: str


class Span(NamedTuple):
    start: date
    days: int = 1


class Tag(msgspec.Struct, frozen=True):
    name: str
    colour: Colour = Colour.RED


AccountId = NewType("AccountId", str)

ORDER = Order(
    number=UUID(int=7),
    customerName="ann",
    lines=[Line(sku="a"), Line(sku="b", price=3)],
    tags={"x", "y", "z"},
    notes={"b": [1, None], "a": {"deep": 1.5}},
    by_rank={2: Line(sku="q")},
    due=datetime(2024, 5, 1, 12, 30, 0, 5, tzinfo=UTC),
)


def arguments_of(annotation: Any, default: Any = ...) -> Arguments:
    """Of `def take(value: annotation) -> annotation`."""

    def take(value): ...  # type: ignore[no-untyped-def]

    def take_or(value=default): ...  # type: ignore[no-untyped-def]

    function = take if default is ... else take_or
    function.__annotations__ = {"value": annotation, "return": annotation}
    return Arguments(function, Context)


def refusal(annotation: Any, value: Any) -> str:
    with pytest.raises(Invalid) as refused:
        arguments_of(annotation).encode((value,), {})
    return str(refused.value).removeprefix("take: ")


CARRIED: list[tuple[Any, Any]] = [
    (Order, ORDER),
    (list[Order], [ORDER, ORDER]),
    (dict[str, Order], {"b": ORDER, "a": ORDER}),
    (Order | None, ORDER),
    (Order | None, None),
    (Order | int, 5),
    (tuple[Order, Point], (ORDER, Point(1, 2))),
    (Page[Line], Page[Line](items=[Line(sku="a")])),
    (Page[Page[int]], Page[Page[int]](items=[Page[int](items=[1])])),
    (Payment, Card(number="4")),
    (Payment, Bank(iban="NO1")),
    (list[Payment], [Card(number="4"), Bank(iban="NO1")]),
    (Card | Bank, Bank(iban="NO1")),
    (Names, Names({"b": frozenset({"2", "1"}), "a": frozenset()})),
    (Stop, Stop("Oslo", 3)),
    (Parcel, Parcel(ORDER, Point(1))),
    (Point, Point(1, 2)),
    (Point | Place, Point(1, 2)),
    (Point | Place, Place(1, "home")),
    (Box, Box(3, ["book"])),
    (list[Box], [Box(3), Box(4)]),
    (Address, {"city": "Oslo", "zip": "0150"}),
    (Span, Span(date(2024, 5, 1), 3)),
    (Tag, Tag("new")),
    (Colour, Colour.RED),
    (Rank, Rank.FIRST),
    (dict[Size, int], {Size.SMALL: 1}),
    (Literal["a", "b"], "b"),
    (Literal[1, 2] | None, 2),
    (AccountId, AccountId("a1")),
    (Annotated[int, msgspec.Meta(gt=0)], 1),
    (Annotated[int, Field(gt=0)], 1),
    (datetime | str, datetime(2024, 5, 1, tzinfo=UTC)),
    (datetime, datetime(2024, 5, 1, 12)),  # noqa: DTZ001 (without a zone)
    (timedelta, timedelta(days=1, microseconds=3)),
    (UUID, UUID(int=1)),
    (Decimal, Decimal("1.10")),
    (bytes, b"\xff\x00"),
]


@pytest.mark.parametrize(("annotation", "value"), CARRIED, ids=map(str, range(len(CARRIED))))
def test_a_value_arrives_as_it_was_given(annotation: Any, value: Any) -> None:
    arguments = arguments_of(annotation)
    payload, values = arguments.encode((value,), {})
    (arrived,), _ = arguments.decode(payload)
    assert type(arrived) is type(value)
    assert arrived == values["value"] == value
    assert json.loads(payload).keys() == {"value"}
    assert arguments.decode_result(arguments.encode_result(value)) == value


@pytest.mark.parametrize(
    ("annotation", "given", "arrived"),
    [
        (Line, {"sku": "a"}, Line(sku="a")),
        (list[Line], [Line(sku="a"), {"sku": "b", "price": 2}], [Line(sku="a"), Line(sku="b", price=2)]),
        (Order, ORDER.model_dump(mode="json", by_alias=True, round_trip=True), ORDER),
        (Order, ORDER.model_dump(mode="json", by_alias=False, round_trip=True), ORDER),
        (Stop, {"city": " Oslo "}, Stop("Oslo")),
        (Payment, {"kind": "bank", "iban": "NO1"}, Bank(iban="NO1")),
        (Names, {"a": ["1"]}, Names({"a": frozenset("1")})),
        (Point, {"x": 1}, Point(1)),
        (Box, {"width": 2}, Box(2)),
        (Parcel, {"order": {"customer": "ann", "number": str(UUID(int=7))}, "at": {"x": 1}}, None),
        (Tag, {"name": "new", "colour": "red"}, Tag("new")),
        (Span, ["2024-05-01"], Span(date(2024, 5, 1))),
        (datetime, "2024-05-01T00:00:00Z", datetime(2024, 5, 1, tzinfo=UTC)),
    ],
    ids=lambda it: repr(it)[:40],
)
def test_a_value_may_be_given_in_its_json_form(annotation: Any, given: Any, arrived: Any) -> None:
    arguments = arguments_of(annotation)
    payload, _ = arguments.encode((given,), {})
    (got,), _ = arguments.decode(payload)
    assert got == (arrived or Parcel(Order(customerName="ann", number=UUID(int=7)), Point(1)))


def test_the_json_form_and_the_model_are_the_same_content() -> None:
    arguments = arguments_of(Order)
    spellings = [
        ORDER,
        ORDER.model_copy(update={"notes": dict(reversed(ORDER.notes.items())), "tags": {"z", "y", "x"}}),
        ORDER.model_dump(mode="json", by_alias=True, round_trip=True),
        ORDER.model_dump(mode="json", by_alias=False, round_trip=True),
    ]
    assert len({arguments.encode((spelling,), {})[0] for spelling in spellings}) == 1


def test_sets_in_models_are_written_in_one_order_in_every_process() -> None:
    program = """
import sys
from pydantic import BaseModel
from leasemill import Context
from leasemill.api.arguments import Arguments
class Tags(BaseModel):
    names: set[str]
    nested: dict[str, list[frozenset[str]]]
def take(tags: Tags): ...
names = {f"tag{n}" for n in range(20)}
print(Arguments(take, Context).encode((Tags(names=names, nested={"a": [frozenset(names)]}),), {})[0].decode())
"""
    printed = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(printed) == 1


def changed(price: Any) -> Order:
    """An order with a price that was assigned, which Pydantic does not check by default."""
    order = ORDER.model_copy(deep=True)
    order.lines.append(Line(sku="c"))
    order.lines[2].price = price
    return order


@dataclass
class Stripped:
    name: str

    def __post_init__(self) -> None:
        self.name = self.name + "!"


class Child(Line):
    colour: str = "red"


class Counted(BaseModel):
    count: int

    @pydantic.field_validator("count")
    @classmethod
    def _one_more(cls, count: int) -> int:
        return count + 1


class Login(BaseModel):
    user: str
    password: SecretStr


class Hidden(BaseModel):
    user: str
    note: str = Field("", exclude=True)


class Needed(BaseModel):
    note: str = Field(exclude=True)


class AsText(BaseModel):
    count: int

    @pydantic.field_serializer("count")
    def _text(self, count: int) -> str:
        return f"{count} pieces"


class Ratio(BaseModel):
    value: float | None
    exact: float = 0.0


class Blob(BaseModel):
    content: bytes


@pytest.mark.parametrize(
    ("annotation", "given", "sentence"),
    [
        (Order, changed("5"), "argument 'value' at lines[2].price: Input should be a valid integer"),
        (list[Order], [ORDER, changed("5")], "argument 'value' at [1].lines[2].price: Input should be a valid integer"),
        (Line, {"sku": "a", "price": "5"}, "argument 'value' at price: Input should be a valid integer"),
        (Order, {"customer": "ann", "colour": 1}, "argument 'value' at colour: Extra inputs are not permitted"),
        (Line, Point(1), "argument 'value' at sku: Field required"),
        (Line, 5, "argument 'value': Input should be an object"),
        (Line, None, "argument 'value': Input should be an object"),
        (Payment, {"kind": "cash"}, "argument 'value': Input tag 'cash' found using 'kind' does not match any"),
        (Annotated[int, Field(gt=0)], 0, "argument 'value': Input should be greater than 0"),
        (list[pydantic.PositiveInt], [1, 0], "argument 'value' at [1]: Input should be greater than 0"),
        (Stop, {"city": "Oslo", "minutes": "5"}, "argument 'value' at minutes: Input should be a valid integer"),
        (Point, Point("5"), "argument 'value' at x: Expected `int`, got `str`"),  # type: ignore[arg-type]
        (Place, Place(1, UUID(int=1)), "argument 'value' at name: a value of type UUID would arrive as str"),  # type: ignore[arg-type]
        (list[Place], [Place(1, date(2024, 5, 1))], "argument 'value' at [0].name: a value of type date would"),  # type: ignore[arg-type]
        (Point, {"x": 1, "z": 2}, "argument 'value': Point has no field 'z'; it has x, y"),
        (Address, {"city": "Oslo", "zip": "1", "land": "NO"}, "argument 'value': the key 'land' would not arrive"),
        (Box, {"width": 0}, "argument 'value': 'width' must be > 0: 0"),
        (Stripped, Stripped("a"), "argument 'value' at name: 'a!' would arrive as 'a!!'; a validator or serializer"),
        (Counted, Counted(count=1), "argument 'value' at count: 2 would arrive as 3; a validator or serializer"),
        (Counted, {"count": 1}, "argument 'value' at count: 2 would arrive as 3; a validator or serializer"),
        (Line, Child(sku="a"), "argument 'value': a value of type Child would arrive as Line"),
        (Page[Line], Page[Line](items=[Child(sku="a")]), "argument 'value' at items[0]: a value of type Child would"),
        (
            Login, Login(user="a", password=SecretStr("x")),
            "argument 'value' at password: a secret would be stored masked",
        ),
        (Login, {"user": "a", "password": "x"}, "argument 'value' at password: a secret would be stored masked"),
        (
            Login, {"user": "a", "password": SecretStr("x")},
            "argument 'value' at password: a secret would be stored masked",
        ),
        (SecretStr, SecretStr("x"), "argument 'value': a secret would be stored masked"),
        (Hidden, Hidden(user="a", note="b"), "argument 'value' at note: the field is excluded from the JSON"),
        (Needed, Needed(note="b"), "argument 'value' at note: Field required (in the JSON that it is stored as)"),
        (AsText, AsText(count=1), "argument 'value' at count: Input should be a valid integer (in the JSON that"),
        (Ratio, Ratio(value=float("inf")), "argument 'value' at value: JSON has no inf; pass None or text"),
        (Ratio, Ratio(value=1, exact=float("nan")), "argument 'value' at exact: JSON has no nan; pass None or text"),
        (dict[str, float], {"a": float("nan")}, "argument 'value' at ['a']: JSON has no nan; pass None or text"),
        (Line, Line.model_construct(sku="\ud800"), "argument 'value': 'utf-8' codec can't encode character"),
        (Blob, Blob(content=b"\xff"), "argument 'value': bytes that are not UTF-8; set ser_json_bytes and val_json"),
        (Order, ORDER.model_copy(update={"notes": {"at": ORDER.due}}), "argument 'value' at notes['at']: a value of"),
    ],
)  # fmt: skip
def test_what_would_not_arrive_as_given_is_refused_with_its_place(annotation: Any, given: Any, sentence: str) -> None:
    assert refusal(annotation, given).startswith(sentence)


def test_a_secret_is_not_in_the_refusal() -> None:
    assert "hunter2" not in refusal(Login, Login(user="a", password=SecretStr("hunter2")))
    assert "hunter2" not in refusal(Login, {"user": "a", "password": "hunter2"})


def test_a_secret_that_its_model_reveals_is_carried() -> None:
    class Open(Login):
        @pydantic.field_serializer("password", when_used="json")
        def _reveal(self, password: SecretStr) -> str:
            return password.get_secret_value()

    arguments = arguments_of(Open)
    login = Open(user="a", password=SecretStr("x"))
    assert arguments.decode(arguments.encode((login,), {})[0])[0] == (login,)


def test_bytes_that_are_not_text_are_carried_as_base64_where_the_model_says_so() -> None:
    class Packed(BaseModel):
        model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
        content: bytes

    class Halfway(BaseModel):
        model_config = ConfigDict(ser_json_bytes="base64")
        content: bytes

    arguments = arguments_of(Packed)
    packed = Packed(content=b"\xff\x00")
    assert arguments.decode(arguments.encode((packed,), {})[0])[0] == (packed,)
    assert refusal(Halfway, Halfway(content=b"\xff")).startswith(
        "argument 'value' at content: b'\\xff' would arrive as"
    )


def test_an_instant_arrives_as_the_same_instant_without_the_name_of_its_zone() -> None:
    class Meeting(BaseModel):
        at: datetime

    arguments = arguments_of(Meeting)
    berlin = Meeting(at=datetime(2024, 5, 1, 12, tzinfo=ZoneInfo("Europe/Berlin")))
    ((arrived,), _) = arguments.decode(arguments.encode((berlin,), {})[0])
    assert arrived == berlin
    assert arrived.at.utcoffset() == timedelta(hours=2)
    utc = Meeting(at=berlin.at.astimezone(timezone.utc))  # noqa: UP017
    assert arguments.encode((utc,), {})[0] != arguments.encode((berlin,), {})[0]


def test_private_attributes_do_not_travel_and_do_not_matter() -> None:
    class Cached(BaseModel):
        count: int
        _seen: object = pydantic.PrivateAttr(default=None)

    given = Cached(count=1)
    given._seen = object()
    ((arrived,), _) = arguments_of(Cached).decode(arguments_of(Cached).encode((given,), {})[0])
    assert (arrived.count, arrived._seen) == (1, None)


def test_a_dataclass_that_is_compared_by_identity_is_carried() -> None:
    @dataclass(eq=False)
    class Own:
        name: str
        inner: list[Point]
        note: str = field(default="", compare=False)

    ((arrived,), _) = arguments_of(Own).decode(arguments_of(Own).encode((Own("a", [Point(1)]),), {})[0])
    assert (arrived.name, arrived.inner) == ("a", [Point(1)])


def test_extra_fields_are_carried_where_the_model_allows_them() -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        a: int

    given = Open.model_validate({"a": 1, "more": [1, 2]})
    ((arrived,), _) = arguments_of(Open).decode(arguments_of(Open).encode((given,), {})[0])
    assert arrived == given
    assert refusal(Open, Open.model_validate({"a": 1, "at": ORDER.due})).startswith(
        "argument 'value' at ['at']: a value"
    )


def test_a_default_that_is_a_model_is_not_sent_and_is_not_shared() -> None:
    default = Page[Line](items=[Line(sku="free")])
    arguments = arguments_of(Page[Line], default)
    assert arguments.encode((), {})[0] == arguments.encode((default.model_copy(deep=True),), {})[0] == b"{}"
    ((first,), _) = arguments.decode(b"{}")
    first.items.append(Line(sku="more"))
    assert arguments.decode(b"{}")[0][0] == default == Page[Line](items=[Line(sku="free")])
    ((other,), _) = arguments.decode(arguments.encode((Page[Line](items=[]),), {})[0])
    assert other.items == []


def test_a_wrong_result_is_refused_with_its_place() -> None:
    with pytest.raises(
        Invalid,
        match=r"take returned a value that does not match its annotation: at lines\[2\]\.price: Input should be",
    ):
        arguments_of(Order).encode_result(changed("5"))


def test_a_model_for_a_parameter_without_a_type_is_refused_with_what_to_write() -> None:
    assert refusal(Any, ORDER) == (
        "argument 'value': Encoding objects of type Order is unsupported; annotate the parameter with its type"
    )


class Old(BaseModel):
    sku: str
    colour: str = "red"


class New(BaseModel):
    sku: str
    size: int = 1


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    sku: str


def test_a_model_that_changed_since_takes_defaults_and_ignores_what_it_does_not_know() -> None:
    payload, _ = arguments_of(Old).encode((Old(sku="a", colour="blue"),), {})
    assert arguments_of(New).decode(payload)[0] == (New(sku="a"),)


def test_a_model_that_forbids_other_fields_does_not_match_a_removed_one() -> None:
    payload, _ = arguments_of(Old).encode((Old(sku="a"),), {})
    with pytest.raises(Invalid, match="take: argument 'value' at colour: Extra inputs are not permitted"):
        arguments_of(Strict).decode(payload)


def test_a_payload_written_by_hand_may_use_names_or_aliases_and_is_checked_strictly() -> None:
    arguments = arguments_of(Order)
    ((by_alias,), _) = arguments.decode(b'{"value":{"customerName":"ann","number":"%s"}}' % str(UUID(int=1)).encode())
    ((by_name,), _) = arguments.decode(b'{"value": {"customer": "ann", "number": "%s"}}' % str(UUID(int=1)).encode())
    assert by_alias == by_name
    with pytest.raises(Invalid, match=r"argument 'value' at lines\[0\]\.price: Input should be a valid integer"):
        arguments.decode(b'{"value":{"customer":"ann","lines":[{"sku":"a","price":"5"}]}}')


def test_a_handler_gets_models_and_its_caller_gets_one_back() -> None:
    app = App("memory:")
    got: list[object] = []

    @app.job(
        lane=lambda order: order.customer,
        limit=Limit(2, by=lambda order: order.size, name="bill-size"),
        unique=Unique(by="order"),
    )
    def bill(order: Order, payment: Payment, *, first: Line | None = None) -> Page[Line]:
        got.extend((order, payment, first))
        return Page[Line](items=order.lines)

    with in_memory(app):
        handle = bill.enqueue(ORDER, Bank(iban="NO1"), first=Line(sku="a"))
        assert handle.record().spec.lane == "ann"
        assert bill.enqueue(ORDER.model_copy(deep=True), Card(number="4")).id == handle.id
        by_hand = {"order": {"customerName": "bob"}, "payment": {"kind": "card", "number": "4"}}
        second = bill.enqueue(**cast("dict[str, Any]", by_hand))
        assert second.record().spec.lane == "bob"
        assert drain(app).succeeded == 2
        assert got[:3] == [ORDER, Bank(iban="NO1"), Line(sku="a")]
        assert handle.result(timeout=0) == Page[Line](items=ORDER.lines)
        assert app.handle(handle.id).result(timeout=0)["items"][0] == {"price": 1, "sku": "a"}


def test_a_repeated_enqueue_of_an_equal_model_is_a_duplicate() -> None:
    app = App("memory:")

    @app.job
    def bill(order: Order) -> None: ...

    with in_memory(app):
        twice = bill.options(job_id="o-7")
        twice.enqueue(ORDER)
        assert twice.enqueue(ORDER.model_copy(update={"notes": dict(reversed(ORDER.notes.items()))})).is_duplicate
        with pytest.raises(JobConflict):
            twice.enqueue(ORDER.model_copy(update={"customer": "bob"}))


def test_a_chain_hands_a_model_on() -> None:
    app = App("memory:")

    @app.job
    def draft(customer: str) -> Order:
        return Order(customerName=customer, number=UUID(int=1))

    @app.job
    def price(order: Order, cents: int) -> Order:
        order.lines.append(Line(sku="all", price=cents))
        return order

    @app.job
    def nothing() -> None: ...

    with in_memory(app):
        handle = chain(draft.call("ann"), price.call(PREVIOUS, 5)).enqueue()
        drain(app)
        assert handle.result(timeout=0).total == 5
        with pytest.raises(Invalid, match="'order' is PREVIOUS, and nothing returns nothing"):
            chain(nothing.call(), price.call(PREVIOUS, 5))


def test_a_result_that_does_not_fit_the_model_any_more_is_no_result() -> None:
    app = App("memory:")

    @app.job(name="sell")
    def sell() -> Old:
        return Old(sku="a")

    with in_memory(app):
        handle = sell.enqueue()
        drain(app)
        record = handle.record()
        assert handle.result(timeout=0) == Old(sku="a")

        def later() -> Strict: ...  # type: ignore[empty-body]

        changed_since = type(handle)(app.store, record.spec.id, Arguments(later, Context))
        with pytest.raises(NoResult, match="has a result that does not fit the declared type: at colour: Extra inputs"):
            changed_since.result(timeout=0)


def test_a_model_may_name_what_is_defined_later() -> None:
    namespace: dict[str, Any] = {"BaseModel": BaseModel, "__name__": "later"}
    exec("class Trip(BaseModel):\n    stops: 'list[Halt]'\ndef go(trip: Trip) -> None: ...", namespace)
    arguments = Arguments(namespace["go"], Context)
    with pytest.raises(Invalid, match=r"parameter 'trip' of go has a field whose annotation cannot be resolved.*Trip"):
        arguments.check()
    exec("class Halt(BaseModel):\n    city: str\nTrip.model_rebuild()", namespace)
    assert arguments.encode(({"stops": [{"city": "Oslo"}]},), {})[0] == b'{"trip":{"stops":[{"city":"Oslo"}]}}'


class Thing: ...


@pytest.mark.parametrize(
    ("annotation", "sentence"),
    [
        (
            Thing,
            "parameter 'value' of take has the type Thing, which cannot be carried as JSON: use a dataclass, attrs",
        ),
        (
            Line | Tag,
            "parameter 'value' of take cannot be carried as JSON: Type unions containing a custom type may not",
        ),
        (
            Line | Box,
            "parameter 'value' of take cannot be carried as JSON: Type unions containing a custom type may not",
        ),
        (list[Line] | Thing, "parameter 'value' of take "),
    ],
    ids=repr,
)
def test_what_nobody_can_carry_is_refused_when_it_is_declared(annotation: Any, sentence: str) -> None:
    with pytest.raises(Invalid) as refused:
        arguments_of(annotation)
    assert str(refused.value).startswith(sentence)
    assert "Pydantic cannot carry it either: " in str(refused.value)


def test_neither_pydantic_nor_attrs_is_imported_for_those_who_do_not_use_them() -> None:
    program = """
import sys
from dataclasses import dataclass
from leasemill import App, Invalid
app = App("memory:")
@dataclass
class A:
    x: int
@dataclass
class B:
    x: int
@app.job
def one(a: A, note: str | None = None) -> A:
    return a
one.enqueue(A(1))
try:
    @app.job
    def either(value: A | B) -> None: ...
except Invalid as error:
    print(error)
print(sorted({"pydantic", "attrs", "attr"} & sys.modules.keys()))
"""
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    refused, imported = completed.stdout.splitlines()
    assert imported == "[]"
    assert "write a union whose members can be distinguished in JSON: classes that are each a msgspec.Struct" in refused


def test_an_older_pydantic_is_refused_with_the_version_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pydantic, "VERSION", "2.10.6")
    with pytest.raises(
        Invalid, match=r"parameter 'value' of take needs Pydantic 2\.11 or newer, and 2\.10\.6 is installed"
    ):
        arguments_of(Line)
