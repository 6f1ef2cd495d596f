"""A program with asyncpg, as a user's type checker sees it. asyncpg itself is not typed."""

from __future__ import annotations

from typing import Any, assert_type

from leasemill import App, Context, JobHandle

app = App("postgresql:///bank")


async def lent() -> Any:
    """A connection of a pool."""


@app.job
async def deposit(ctx: Context, account: str, cents: int) -> int:
    connection = await lent()
    async with ctx.commit(connection) as tx:
        total = int(await connection.fetchval("update balance set cents = cents + $1 returning cents", cents))
        tx.set_result(total)
    return total


async def place(connection: Any) -> None:
    async with connection.transaction():
        assert_type(await deposit.using(connection).aenqueue("ann", 5), JobHandle[int])
