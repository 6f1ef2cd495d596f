"""The shop on PostgreSQL: an order and its job are one transaction, and a charge takes effect once."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from leasemill import JobState, NotFound
from leasemill.testing.postgres import PostgresServer

MAIN = Path(__file__).resolve().parents[2] / "examples" / "fastapi_app" / "main.py"
LONG_S = 60.0
ANN = {"customer": "ann", "cents": 500}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(settings={"fsync": "off"}) as server:
        yield server


@pytest.fixture
def main(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setenv("DATABASE_URL", server.url(tcp=True))
    spec = importlib.util.spec_from_file_location("example_shop", MAIN)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["example_shop"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules["example_shop"]


@pytest.fixture
async def client(main: ModuleType) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        main.web.router.lifespan_context(main.web),
        httpx.AsyncClient(transport=httpx.ASGITransport(main.web), base_url="http://example") as client,
    ):
        yield client


async def placed(client: httpx.AsyncClient, key: str, order: dict[str, Any] = ANN) -> httpx.Response:
    return await client.post("/orders", json=order, headers={"Idempotency-Key": key})


async def test_an_order_is_placed_charged_and_its_receipt_sent(main: ModuleType, client: httpx.AsyncClient) -> None:
    answer = await placed(client, "one")
    assert (answer.status_code, answer.json()["id"]) == (202, "one")
    await main.jobs.handle("charge-one").aresult(timeout=LONG_S)
    assert await main.jobs.handle("charge-one/0").aresult(timeout=LONG_S) == "ann paid 500 with payment-charge-one"
    assert (await client.get("/orders/one")).json() == {**ANN, "id": "one", "paid_with": "payment-charge-one"}
    assert (await client.get("/orders/none")).status_code == 404
    assert (await client.get("/healthz")).status_code == 200


async def test_a_request_that_is_sent_twice_is_one_order_and_one_job(
    main: ModuleType, client: httpx.AsyncClient
) -> None:
    first, second = await placed(client, "twice"), await placed(client, "twice")
    assert (first.status_code, second.status_code) == (202, 202)
    assert (await placed(client, "twice", {"customer": "bob", "cents": 1})).status_code == 409
    assert (await placed(client, "cheap", {"customer": "bob", "cents": 0})).status_code == 422
    await main.jobs.handle("charge-twice").aresult(timeout=LONG_S)


async def test_a_model_may_come_from_sql(main: ModuleType, client: httpx.AsyncClient) -> None:
    await placed(client, "seen")
    await main.jobs.handle("charge-seen").aresult(timeout=LONG_S)
    async with main.engine.begin() as connection:
        await connection.execute(
            text("select leasemill.enqueue('default', 'send_receipt', cast(:arguments as jsonb), 'by-hand')"),
            {"arguments": json.dumps({"order": {**ANN, "id": "seen", "paid_with": "cash"}})},
        )
    assert await main.jobs.handle("by-hand").aresult(timeout=LONG_S) == "ann paid 500 with cash"


REFUSE_EVE = """
create function refuse_eve() returns trigger language plpgsql as $$ begin raise exception 'no orders for eve'; end $$;
create constraint trigger refuse_eve after insert on shop_orders deferrable initially deferred
for each row when (new.customer = 'eve') execute function refuse_eve()
"""


async def test_an_order_that_is_rolled_back_at_its_commit_has_no_job(
    main: ModuleType, client: httpx.AsyncClient
) -> None:
    async with main.engine.begin() as connection:
        for statement in REFUSE_EVE.split(";\n"):
            await connection.execute(text(statement))
    with pytest.raises(DBAPIError, match="no orders for eve"):
        await placed(client, "refused", {"customer": "eve", "cents": 500})
    with pytest.raises(NotFound):
        await main.jobs.handle("charge-refused").arecord()
    assert (await client.get("/orders/refused")).status_code == 404


async def test_a_charge_that_fails_before_its_commit_leaves_nothing_and_is_retried_with_the_same_key(
    main: ModuleType, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []
    seen: list[str | None] = []

    class Interrupted(Exception): ...

    original = main.OrderRow.__setattr__

    async def pay(order: Any, *, key: str) -> str:
        async with main.sessions() as session:
            seen.append((await session.get_one(main.OrderRow, order.id)).paid_with)
        keys.append(key)
        return f"try-{len(keys)}"

    def interrupted(row: Any, name: str, value: Any) -> None:
        original(row, name, value)
        if name == "paid_with" and value == "try-1":
            raise Interrupted("after the write, before the commit")

    monkeypatch.setattr(main, "pay", pay)
    monkeypatch.setattr(main.OrderRow, "__setattr__", interrupted)
    await placed(client, "shaky")
    assert (await main.jobs.handle("charge-shaky").aresult(timeout=LONG_S))["paid_with"] == "try-2"
    assert keys == ["charge-shaky"] * 2
    assert seen == [None, None]
    record = await main.jobs.handle("charge-shaky").arecord()
    assert (record.state, len(record.executions)) == (JobState.SUCCEEDED, 2)
    assert await main.jobs.handle("charge-shaky/0").aresult(timeout=LONG_S) == "ann paid 500 with try-2"
