"""A program with connections of psycopg and psycopg2, as a user's type checker sees it."""

from __future__ import annotations

from typing import Any, assert_type

import psycopg
import psycopg2

from leasemill import App, Context, JobHandle

app = App("postgresql:///bank")


@app.job
def deposit(ctx: Context, account: str, cents: int) -> None:
    with psycopg.connect("dbname=bank") as connection, ctx.commit(connection) as tx:
        connection.execute("update balance set cents = cents + %s where account = %s", [cents, account])
        assert_type(tx.enqueue(deposit, "bob", 1), JobHandle[None])


@app.job
async def withdraw(ctx: Context, account: str, cents: int) -> int:
    async with ctx.commit() as tx:
        cursor = await tx.execute("update balance set cents = cents - %s returning cents", [cents])
        assert_type(cursor, psycopg.AsyncCursor[tuple[Any, ...]])
    return cents


def place() -> None:
    with psycopg.connect("dbname=bank") as connection:
        assert_type(deposit.using(connection).enqueue("ann", 5), JobHandle[None])
    older = psycopg2.connect("dbname=bank")
    assert_type(deposit.using(older).enqueue("ann", 5), JobHandle[None])


async def place_async(connection: psycopg.AsyncConnection[tuple[Any, ...]]) -> None:
    assert_type(await withdraw.using(connection).aenqueue("ann", cents=5), JobHandle[int])
