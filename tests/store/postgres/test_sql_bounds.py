"""The SQL function and the kernel accept the same jobs (I4): what one of them refuses, the other does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import errors

from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.kernel.bounds import UNPRINTABLE
from leasemill.kernel.machine import check
from leasemill.kernel.model import SECOND, JobSpec, Rules, UniqueKey, UniqueUntil
from leasemill.store.postgres.driver.url import parse_url
from leasemill.testing.rules import rule

Connection = psycopg.Connection[Any]
REFUSED = (errors.InvalidParameterValue, errors.NumericValueOutOfRange)
SURROGATES = range(0xD800, 0xE000)
INFINITE_INTERVALS = 170_000
DAY_US = 24 * 3_600 * SECOND


@pytest.fixture
def mine(postgres_url: str) -> Iterator[Connection]:
    with psycopg.connect(parse_url(postgres_url)[0]) as connection:
        yield connection


@rule("I4")
def test_every_character_is_printable_to_both_or_to_neither(mine: Connection, schema: str) -> None:
    query = f"""select n from generate_series(1, 1114111) as n
        where n not between {SURROGATES.start} and {SURROGATES.stop - 1} and not {schema}.is_printable(chr(n))"""
    refused = {n for (n,) in mine.execute(query.encode()).fetchall()}
    assert refused == {n for n in range(1, 0x110000) if n not in SURROGATES and UNPRINTABLE.search(chr(n))}


def nested(depth: int) -> str:
    """An object in which objects and arrays take turns."""
    opened = "".join('{"a": ' if level % 2 == 0 else "[" for level in range(depth))
    return opened + "1" + "".join("}" if level % 2 == 0 else "]" for level in reversed(range(depth)))


TEXTS = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=0, max_size=5),
    st.sampled_from(["", "a", "x" * 200, "x" * 201, "ä" * 200, "cron/a", "\U000110bd", "\U0001d173", "\U000e0041"]),
    st.sampled_from(["a\n", "\ufffd", "\ufffc", "\U0001f984", "\U000e0100", "\U0001fae8", " ", "\u00a0", "\ue000"]),
)
NAMES = st.sampled_from(["q", "_", "a.b:c-d", "x" * 100, "x" * 101, "", "-a", "q\n", "a b", "ä"])
NUMBERS = st.sampled_from([
    "0", "1.5", "1e400", "1" * 4300, "1" * 4301, "-" + "1" * 4301, "1" * 400 + ".5", "1" * 309 + ".5", "9" * 309 + ".5",
    "1e-400", "1e4400", f'"{"1" * 5000}"',
])  # fmt: skip
PAYLOADS = st.one_of(
    st.sampled_from([499, 500, 501, 600]).map(nested),
    NUMBERS.map(lambda number: f'{{"a": [{number}]}}'),
    st.sampled_from([1_048_565, 1_048_566, 1_048_567, 1_048_568]).map(lambda length: json.dumps({"a": "x" * length})),
    st.just(json.dumps({"a": "[" * 600, "b": [[]] * 600, "c": "9" * 400})),
)
HEADERS = st.one_of(
    st.dictionaries(NAMES, st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=3)),
    st.dictionaries(st.just("a"), st.sampled_from(["x" * 4095, "x" * 4096])),
    st.sampled_from([32, 33]).map(lambda count: {f"h{number}": "v" for number in range(count)}),
)
DELAYS_US = st.sampled_from([-1, 0, 1, SECOND, 3_660 * DAY_US, 3_660 * DAY_US + 1])
TIMES = st.sampled_from([
    datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), datetime(1970, 1, 1, tzinfo=UTC),
    datetime(2030, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 1, UTC),
])  # fmt: skip
ARGUMENTS: dict[str, st.SearchStrategy[Any]] = {
    "queue": NAMES,
    "kind": NAMES,
    "payload": PAYLOADS,
    "id": TEXTS,
    "lane": TEXTS,
    "priority": st.sampled_from([-1, 0, 9, 10]),
    "delay": DELAYS_US,
    "run_at": TIMES,
    "unique_key": TEXTS,
    "unique_until": st.sampled_from(["ended", "started"]),
    "unique_keep": DELAYS_US,
    "headers": HEADERS,
}


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    """One or two arguments are drawn, the others are plain: what is refused is refused for them."""
    names = draw(st.lists(st.sampled_from(sorted(ARGUMENTS)), min_size=1, max_size=2, unique=True))
    if {"unique_until", "unique_keep"} & set(names):
        names.append("unique_key")
    return {"queue": "q", "kind": "k", **{name: draw(ARGUMENTS[name]) for name in names}}


def kernel_accepts(connection: Connection, call: dict[str, Any]) -> bool:
    """The payload as it is stored: what jsonb makes of it."""
    row = connection.execute("select (%s::jsonb)::text", [call.get("payload", "{}")]).fetchone()
    assert row is not None
    run_at = call.get("run_at")
    unique = call.get("unique_key")
    job = JobSpec(
        call.get("id", "id"),
        call["queue"],
        call["kind"],
        row[0].encode(),
        lane=call.get("lane"),
        priority=call.get("priority", 0),
        run_at=None if run_at is None else (run_at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1),
        delay_us=call.get("delay", 0),
        headers=call.get("headers"),
        rules=None
        if unique is None
        else Rules(
            unique=UniqueKey(unique, UniqueUntil(call.get("unique_until", "ended")), call.get("unique_keep", 0))
        ),
    )
    try:
        check(c.Enqueue([job]))
    except Invalid:
        return False
    return True


def sql_accepts(connection: Connection, schema: str, call: dict[str, Any]) -> bool:
    casts = {"payload": "::jsonb", "headers": "::jsonb", "delay": "* interval '1 microsecond'"}
    casts["unique_keep"] = casts["delay"]
    named = ", ".join(f"{name} => %({name})s{casts.get(name, '')}" for name in call)
    values = {name: json.dumps(value) if name == "headers" else value for name, value in call.items()}
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(f"select {schema}.enqueue({named})".encode(), values)
    except REFUSED:
        return False
    return True


@rule("I4")
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], print_blob=True)
@given(call=calls())
def test_the_sql_function_accepts_what_the_kernel_accepts(mine: Connection, schema: str, call: dict[str, Any]) -> None:
    assert sql_accepts(mine, schema, call) == kernel_accepts(mine, call)


@rule("I4")
@pytest.mark.parametrize("call", [
    {"payload": nested(600)}, {"payload": f'{{"a": {"1" * 4301}}}'}, {"headers": {"a": ["b"]}}, {"headers": {"a": []}},
    *({name: text} for name in ("id", "lane", "unique_key") for text in ("\U000110bd", "\U0001d173", "\U000e0041")),
])  # fmt: skip
def test_what_no_worker_could_read_or_name_is_refused_in_sql(
    mine: Connection, schema: str, call: dict[str, Any]
) -> None:
    assert not sql_accepts(mine, schema, {"queue": "q", "kind": "k", **call})


@rule("I4")
@pytest.mark.parametrize(
    "argument",
    [
        *(f"run_at => '{text}'" for text in ("infinity", "-infinity", "294276-12-31", "4713-01-01 BC")),
        *(f"delay => interval '{text}'" for text in ("infinity", "-infinity", "178000000 years", "-178000000 years")),
        *(f"unique_key => 'key', unique_keep => interval '{text}'" for text in ("infinity", "178000000 years")),
    ],
)
def test_a_time_without_end_is_refused_with_the_bounds(mine: Connection, schema: str, argument: str) -> None:
    if "interval" in argument and "infinity" in argument and mine.info.server_version < INFINITE_INTERVALS:
        pytest.skip("this server has no infinite intervals")
    with pytest.raises(errors.InvalidParameterValue, match=r"from 0 to 3660 days|from 1970 to 9999"):
        mine.execute(f"select {schema}.enqueue('q', 'k', {argument})".encode())


@pytest.mark.parametrize(
    "call", [{"id": "\ufffd"}, {"lane": "\U000e0100"}, {"delay": 0, "run_at": datetime(2030, 1, 1, tzinfo=UTC)}]
)
def test_what_the_kernel_accepts_is_accepted_in_sql(mine: Connection, schema: str, call: dict[str, Any]) -> None:
    assert sql_accepts(mine, schema, {"queue": "q", "kind": "k", **call})


def test_a_result_that_no_client_could_read_is_refused_in_sql(mine: Connection, schema: str) -> None:
    with pytest.raises(errors.InvalidParameterValue, match="result is nested more than 500 levels deep"):
        mine.execute(f"select {schema}.commit('id', 'token', %s::jsonb)".encode(), [nested(501)])
