"""An app whose effects are rows of the user's own tables, written in the transactions of its commits.

`entries` and `receipts` have no unique key on purpose: an effect applied twice would stand there twice.
"""

from __future__ import annotations

from typing import Any, Final, LiteralString

import psycopg

from leasemill import App, Context, Retry

LEASE_S: Final = 2.0

TABLES: Final[LiteralString] = """
create schema if not exists bank;
create table bank.accounts (name text primary key, cents int8 not null default 0);
create table bank.entries (
    serial int8 generated always as identity, job text not null, account text not null, number int8 not null,
    cents int8 not null, worker text not null, at timestamptz not null default clock_timestamp()
);
create table bank.receipts (job text not null, account text not null, number int8 not null);
create table bank.orders (job text primary key, account text not null, number int8 not null);
"""

app = App()


@app.job(queue="deposits", lane="account", lease=LEASE_S, timeout=120, retry=Retry(max=1_000, base=0.05, cap=0.5))
async def deposit(ctx: Context, account: str, number: int, cents: int) -> None:
    async with ctx.commit() as tx:
        await tx.execute(
            "insert into bank.entries (job, account, number, cents, worker) values (%s, %s, %s, %s, %s)",
            [ctx.job_id, account, number, cents, ctx.worker],
        )
        await tx.execute("update bank.accounts set cents = cents + %s where name = %s", [cents, account])
        tx.enqueue(receipt, account, number)


@app.job(queue="receipts", lease=LEASE_S, timeout=120, retry=Retry(max=1_000, base=0.05, cap=0.5))
def receipt(ctx: Context, account: str, number: int) -> None:
    with ctx.commit() as tx:
        tx.execute("insert into bank.receipts values (%s, %s, %s)", [ctx.job_id, account, number])


def job_id(account: str, number: int) -> str:
    return f"deposit-{account}-{number}"


def open_accounts(connection: psycopg.Connection[Any], names: list[str]) -> None:
    """An empty bank."""
    connection.execute("drop schema if exists bank cascade")
    connection.execute(TABLES)
    for name in names:
        connection.execute("insert into bank.accounts (name) values (%s)", [name])
