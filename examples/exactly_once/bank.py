"""Transfers between accounts, exactly once, on PostgreSQL: the balance is right to the cent, whatever dies.

A transfer is ordered in one transaction: the order's row and its job. It is carried out in one transaction: both
accounts, and the job's COMMITTED. Run as a program it opens a bank, orders transfers, and compares the balances with
the orders.
"""

from __future__ import annotations

import os
import random
import sys
from decimal import Decimal

import psycopg

from leasemill import App, Context

DATABASE = os.environ.get("LEASEMILL_URL", "postgresql:///bank")
app = App(DATABASE)

OPENING = Decimal("1000.00")
NAMES = [f"account-{number:02}" for number in range(20)]


@app.job(queue="transfers", lane="source", lease=2)
async def transfer(ctx: Context, source: str, target: str, amount: Decimal) -> None:
    """The lane is the account that pays: its transfers are carried out in the order they were given."""
    async with ctx.commit() as tx:
        await tx.execute("update account set balance = balance - %s where name = %s", [amount, source])
        await tx.execute("update account set balance = balance + %s where name = %s", [amount, target])


def open_bank() -> None:
    with psycopg.connect(DATABASE) as connection:
        connection.execute("create table if not exists account (name text primary key, balance numeric not null)")
        connection.execute(
            "create table if not exists transfer_order "
            "(number int8 generated always as identity, source text, target text, amount numeric)"
        )
        for name in NAMES:
            connection.execute("insert into account values (%s, %s) on conflict do nothing", [name, OPENING])


def order(count: int) -> None:
    """An order and its job are one transaction: there is never one without the other."""
    with psycopg.connect(DATABASE) as connection:
        for _ in range(count):
            source, target = random.sample(NAMES, 2)
            amount = Decimal(random.randint(1, 10_000)) / 100
            with connection.transaction():
                connection.execute(
                    "insert into transfer_order (source, target, amount) values (%s, %s, %s)", [source, target, amount]
                )
                transfer.using(connection).enqueue(source, target, amount)


def check() -> bool:
    """Whether every account has what its orders say."""
    with psycopg.connect(DATABASE) as connection:
        wrong = connection.execute(
            "select name, balance, due from account cross join lateral (select %s "
            "- coalesce(sum(amount) filter (where source = name), 0) "
            "+ coalesce(sum(amount) filter (where target = name), 0) as due from transfer_order) as orders "
            "where balance <> due order by name",
            [OPENING],
        ).fetchall()
        row = connection.execute("select count(*) from transfer_order").fetchone()
    for name, balance, due in wrong:
        print(f"{name} has {balance}, its orders make {due}")
    print(f"{row[0] if row else 0} transfers ordered, {len(wrong)} of {len(NAMES)} balances wrong")
    return not wrong


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["open"]:
            open_bank()
        case ["order", count]:
            order(int(count))
        case ["check"]:
            sys.exit(0 if check() else 1)
        case _:
            sys.exit("bank.py open | order COUNT | check")
