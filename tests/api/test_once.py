"""`ctx.once` on SQLite: the effect of a job in another database than the store's, applied by one of its runs."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasemill import App, Context
from leasemill.api.effects import DriverConnection, Once, http_headers
from leasemill.errors import Invalid, LeaseLost
from leasemill.kernel.model import JobState
from leasemill.testing.clock import ManualClock
from leasemill.testing.drain import drain, in_memory

SMALL_WAIT_S = 0.05


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Callable[..., sqlite3.Connection]]:
    """Opens connections to one database with a balance of 0."""
    path = tmp_path / "bank.db"
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("create table balance (cents integer)")
        made.execute("insert into balance values (0)")
    opened: list[sqlite3.Connection] = []

    def connect(**options: Any) -> sqlite3.Connection:
        opened.append(sqlite3.connect(path, check_same_thread=False, **{"timeout": SMALL_WAIT_S, **options}))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture
def app() -> Iterator[App]:
    with App("memory:") as made:
        yield made


@pytest.fixture
def clock(app: App) -> Iterator[ManualClock]:
    with in_memory(app) as made:
        yield made


def pay(connection: sqlite3.Connection, cents: int = 500) -> None:
    connection.execute("update balance set cents = cents + ?", [cents])


def balance(connection: sqlite3.Connection) -> int:
    return int(connection.execute("select cents from balance").fetchone()[0])


def guards(connection: sqlite3.Connection) -> list[tuple[str, str, int]]:
    return connection.execute("select job, effect, fence from leasemill_once order by fence").fetchall()


def once(
    connection: DriverConnection, fence: int = 1, *, effect: str = "pay", check: Callable[[], None] = lambda: None
) -> Once:
    """The guard of one run of the job `job`, in this test's hands."""
    return Once(connection, "job", effect, fence, check, set())


# In a handler ----------------------------------------------------------------------------------------------------


def test_a_run_that_dies_after_its_effect_is_repeated_without_it(
    app: App, clock: ManualClock, bank: Callable[..., sqlite3.Connection]
) -> None:
    firsts: list[bool] = []

    @app.job
    def deposit(ctx: Context) -> None:
        with closing(bank()) as connection, ctx.once(connection) as first:
            firsts.append(first)
            if first:
                pay(connection)
        if ctx.attempt == 1:
            raise ConnectionError("between the effect and the report")

    job = deposit.options(job_id="d1").enqueue()
    drain(app, clock)
    assert (job.status(), firsts, balance(bank())) == (JobState.SUCCEEDED, [True, False], 500)
    assert guards(bank()) == [("d1", "deposit", 1)]


def test_a_handler_that_does_not_ask_whether_it_is_the_first_is_safe_too(
    app: App, clock: ManualClock, bank: Callable[..., sqlite3.Connection]
) -> None:
    @app.job
    def deposit(ctx: Context) -> None:
        with closing(bank()) as connection, ctx.once(connection):
            pay(connection)
        if ctx.attempt == 1:
            raise ConnectionError("between the effect and the report")

    deposit.enqueue()
    drain(app, clock)
    assert balance(bank()) == 500


def test_a_run_whose_effect_was_rolled_back_is_repeated_with_it(
    app: App, clock: ManualClock, bank: Callable[..., sqlite3.Connection]
) -> None:
    @app.job
    def deposit(ctx: Context) -> None:
        with closing(bank()) as connection, ctx.once(connection):
            pay(connection)
            if ctx.attempt == 1:
                raise ConnectionError("in the middle")

    deposit.options(job_id="d1").enqueue()
    drain(app, clock)
    assert (balance(bank()), guards(bank())) == (500, [("d1", "deposit", 2)])


def test_several_effects_of_a_job_have_names_and_the_same_name_twice_is_refused(
    app: App, clock: ManualClock, bank: Callable[..., sqlite3.Connection]
) -> None:
    @app.job(retry=1)
    def deposit(ctx: Context, second: str | None) -> None:
        with closing(bank()) as connection:
            with ctx.once(connection):
                pay(connection)
            with ctx.once(connection, second):
                pay(connection, 30)

    good = deposit.options(job_id="good").enqueue("fee")
    wrong = deposit.options(job_id="wrong").enqueue(None)
    drain(app, clock, concurrency=1)  # two at a time may find the database locked
    assert good.status() is JobState.SUCCEEDED
    error = wrong.record().executions[0].error
    assert error is not None
    assert "name the second" in error
    assert balance(bank()) == 500 + 30 + 500


def test_a_run_that_knows_of_its_loss_applies_nothing(
    app: App, clock: ManualClock, bank: Callable[..., sqlite3.Connection]
) -> None:
    @app.job
    def deposit(ctx: Context) -> None:
        if ctx.attempt == 1:
            clock.advance(s=31)
            ctx.lost.set("expired")
        with closing(bank()) as connection, ctx.once(connection):
            pay(connection)

    job = deposit.options(job_id="d1").enqueue()
    drain(app, clock)
    assert (job.status(), balance(bank()), guards(bank())) == (JobState.SUCCEEDED, 500, [("d1", "deposit", 2)])


async def test_on_the_event_loop_it_is_refused_with_a_way_out(bank: Callable[..., sqlite3.Connection]) -> None:
    with pytest.raises(Invalid, match=r"asyncio\.to_thread"), once(bank()):
        raise AssertionError("never here")

    def in_a_thread() -> None:
        with closing(bank()) as connection, once(connection) as first:
            assert first
            pay(connection)

    await asyncio.to_thread(in_a_thread)
    assert balance(bank()) == 500


# Two runs of one job ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fence", "later"), [(1, 2), (2, 1)], ids=["a repeat comes later", "a zombie comes later"])
def test_whoever_comes_second_does_nothing(bank: Callable[..., sqlite3.Connection], fence: int, later: int) -> None:
    connection = bank()
    with once(connection, fence) as first:
        pay(connection)
    with once(connection, later) as again:
        pay(connection)
    assert (first, again, balance(bank()), guards(bank())) == (True, False, 500, [("job", "pay", fence)])


@pytest.mark.parametrize("goes_well", [True, False])
def test_of_two_runs_at_once_one_waits_and_finds_what_the_other_did(
    bank: Callable[..., sqlite3.Connection], goes_well: bool
) -> None:
    a, b = bank(), bank()
    try:
        with once(a, 1):
            pay(a)
            with pytest.raises(sqlite3.OperationalError, match="locked"), once(b, 2):
                raise AssertionError("never here")
            if not goes_well:
                raise ConnectionError("in the middle")
    except ConnectionError:
        assert not goes_well
    with once(b, 2) as first:
        pay(b)
    assert (first, balance(bank()), guards(bank())) == (not goes_well, 500, [("job", "pay", 1 if goes_well else 2)])


def test_a_loss_that_is_noticed_inside_the_block_undoes_it(bank: Callable[..., sqlite3.Connection]) -> None:
    checks = iter([None, LeaseLost("job", "once", "expired", 1, 1)])

    def check() -> None:
        if (loss := next(checks)) is not None:
            raise loss

    connection = bank()
    with pytest.raises(LeaseLost), once(connection, check=check):
        pay(connection)
    assert (balance(bank()), connection.in_transaction) == (0, False)


def test_a_crash_between_effect_and_commit_leaves_neither(bank: Callable[..., sqlite3.Connection]) -> None:
    connection = bank()
    once(connection, 1).__enter__()
    pay(connection)
    connection.close()  # as the end of the process would
    again = bank()
    with once(again, 2) as first:
        pay(again)
    assert (first, balance(bank())) == (True, 500)


@given(st.lists(st.sampled_from(["ends", "fails", "crashes"]), max_size=8), st.randoms(use_true_random=False))
def test_whatever_becomes_of_its_runs_the_effect_is_there_once_if_one_got_through(
    hows: list[str], order: random.Random
) -> None:
    fences = list(range(len(hows)))
    order.shuffle(fences)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bank.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as look:
            look.execute("create table balance (cents integer)")
            look.execute("insert into balance values (0)")
            for how, fence in zip(hows, fences, strict=True):
                with closing(sqlite3.connect(path)) as connection:
                    guard = once(connection, fence)
                    guard.__enter__()
                    pay(connection)
                    if how != "crashes":
                        error = ConnectionError("in the middle") if how == "fails" else None
                        guard.__exit__(None if error is None else type(error), error, None)
            assert balance(look) == (500 if "ends" in hows else 0)
            if "ends" in hows:
                assert guards(look) == [("job", "pay", fences[hows.index("ends")])]


def test_what_was_written_before_the_block_in_the_same_transaction_belongs_to_it(
    bank: Callable[..., sqlite3.Connection],
) -> None:
    connection = bank()
    for fence in (1, 2):
        pay(connection)
        with once(connection, fence):
            pay(connection, 1)
    assert balance(bank()) == 501


# The modes of sqlite3 --------------------------------------------------------------------------------------------

MODES: list[dict[str, Any]] = [{}, {"isolation_level": None}, {"isolation_level": "IMMEDIATE"}]
if sys.version_info >= (3, 12):
    MODES.append({"autocommit": False})


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_every_way_sqlite3_begins_is_one_transaction(
    bank: Callable[..., sqlite3.Connection], mode: dict[str, Any]
) -> None:
    connection = bank(**mode)
    with suppress(ConnectionError), once(connection, 1):
        pay(connection)
        raise ConnectionError("in the middle")
    assert balance(bank()) == 0
    for fence in (2, 3):
        with once(connection, fence):
            pay(connection)
    assert (balance(bank()), guards(bank())) == (500, [("job", "pay", 2)])


def end_by_script(connection: sqlite3.Connection) -> None:
    connection.executescript("update balance set cents = cents + 1")


@pytest.mark.parametrize("end", [sqlite3.Connection.commit, sqlite3.Connection.rollback, end_by_script])
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_block_that_ends_its_transaction_is_told_so(
    bank: Callable[..., sqlite3.Connection], end: Callable[[sqlite3.Connection], None], goes_on: bool
) -> None:
    connection = bank()

    def block() -> None:
        with once(connection):
            end(connection)
            if goes_on:
                pay(connection)

    with pytest.raises(Invalid, match="did not last until the end of its block"):
        block()
    assert balance(bank()) in {0, 1}, "what was written after the end is not there"


# Connections that cannot be used ---------------------------------------------------------------------------------


class Autocommitting(sqlite3.Connection):
    autocommit = True


class Async(sqlite3.Connection):
    async def commit(self) -> None: ...  # type: ignore[override]


class Homemade:
    def cursor(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Autocommitting, r"set connection\.autocommit = False"),
        (Async, "takes a sync connection"),
    ],
)
def test_a_connection_that_would_not_keep_the_promise_is_refused(
    bank: Callable[..., sqlite3.Connection], kind: type[sqlite3.Connection], sentence: str
) -> None:
    with pytest.raises(Invalid, match=sentence):
        once(bank(factory=kind))


def test_what_is_no_connection_of_a_driver_is_refused() -> None:
    with pytest.raises(Invalid, match="Homemade is not a connection of a DB-API driver"):
        once(Homemade())


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("qmark", "values (?, ?, ?)"),
        ("numeric", "values (:1, :2, :3)"),
        ("named", "values (:job, :effect, :fence)"),
        ("format", "values (%s, %s, %s)"),
        ("pyformat", "values (%(job)s, %(effect)s, %(fence)s)"),
    ],
)
def test_every_style_of_parameters_is_spoken(
    bank: Callable[..., sqlite3.Connection], monkeypatch: pytest.MonkeyPatch, style: str, expected: str
) -> None:
    statements: list[tuple[str, Any]] = []
    guard = once(bank())
    monkeypatch.setattr(sqlite3, "paramstyle", style)
    monkeypatch.setattr(Once, "_execute", lambda _self, statement, values=None: statements.append((statement, values)))
    assert guard._put_guard()
    statement, values = statements[-1]
    assert statement.endswith(expected)
    by_name = {"job": "job", "effect": "pay", "fence": 1}
    assert values == (by_name if style in {"named", "pyformat"} else ("job", "pay", 1))


# Headers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job_id", "effect", "key"),
    [
        ("order-7/0", None, "order-7/0"),
        ("order-7", "capture", "order-7:capture"),
        ("Müller 100%", None, "M%C3%BCller%20100%25"),
    ],
)
def test_the_headers_carry_the_job_and_the_fence(app: App, job_id: str, effect: str | None, key: str) -> None:
    headers: list[dict[str, str]] = []

    @app.job
    def call(ctx: Context) -> None:
        headers.append(ctx.http_headers(effect))
        if ctx.attempt == 1:
            raise ConnectionError("no answer")

    with in_memory(app) as clock:
        call.options(job_id=job_id).enqueue()
        drain(app, clock)
    assert headers == [{"Idempotency-Key": key, "Leasemill-Fence": fence} for fence in ("1", "2")]


def test_a_key_is_never_longer_than_services_take() -> None:
    keys = {http_headers("ü" * 199 + end, None, 1)["Idempotency-Key"] for end in "ab"}
    assert {len(key) for key in keys} == {64}
    assert len(keys) == 2
