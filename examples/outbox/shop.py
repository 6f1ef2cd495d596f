"""An order service whose events reach another service exactly once by effect, whoever is killed meanwhile.

The order and its event are written in one transaction of the shop's. A worker relays events, those of one customer in
order. The ledger is another database, which keeps a guard row for each event it has booked. `python shop.py` places
orders, kills the worker at random moments and audits both databases; with `--url` on a PostgreSQL of yours.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

from leasemill import App, Context, Retry
from leasemill.testing.postgres import PostgresServer

CUSTOMERS = ("ann", "bob", "cy", "dee")
LEASE_S = 1.0

app = App()

# The shop -------------------------------------------------------------------------------------------------------

SHOP = """
create table if not exists orders (
    id int8 generated always as identity primary key,
    customer text not null,
    cents int8 not null,
    announced int4 not null default 0
)"""


def place(shop: psycopg.Connection[tuple[int]], customer: str, cents: int, *, card_is_refused: bool = False) -> None:
    """The order and its event: both, or neither."""
    with shop.transaction(force_rollback=card_is_refused):
        row = shop.execute(
            "insert into orders (customer, cents) values (%s, %s) returning id", [customer, cents]
        ).fetchone()
        assert row is not None
        order_placed.using(shop).options(job_id=f"order-{row[0]}").enqueue(row[0], customer, cents)


@app.job(queue="outbox", lane="customer", lease=LEASE_S, retry=Retry(max=20, base=0.05, cap=1), max_expirations=1_000)
async def order_placed(ctx: Context, order: int, customer: str, cents: int) -> None:
    """The relay. Telling the ledger may happen twice; that the order was announced is written with the commit, once."""
    await book(event=ctx.idempotency_key, customer=customer, cents=cents)
    async with ctx.commit() as tx:
        await tx.execute("update orders set announced = announced + 1 where id = %s", [order])


# The ledger: another service, with a database of its own --------------------------------------------------------

LEDGER = """
create table if not exists booked (
    number int8 generated always as identity primary key, event text not null unique, customer text not null
);
create table if not exists balances (customer text primary key, cents int8 not null);
create table if not exists deliveries (event text not null, at timestamptz not null)"""


async def book(*, event: str, customer: str, cents: int) -> None:
    """The guard row and the booking are one transaction: delivered again, an event changes nothing."""
    async with await psycopg.AsyncConnection.connect(database("ledger"), autocommit=True) as ledger:
        await ledger.execute("insert into deliveries values (%s, %s)", [event, datetime.now(UTC)])
        async with ledger.transaction():
            guard = await ledger.execute(
                "insert into booked (event, customer) values (%s, %s) on conflict do nothing", [event, customer]
            )
            if guard.rowcount == 1:
                await ledger.execute(
                    "insert into balances values (%s, %s) "
                    "on conflict (customer) do update set cents = balances.cents + excluded.cents",
                    [customer, cents],
                )


# The show -------------------------------------------------------------------------------------------------------


def database(name: str) -> str:
    """The address of a database on the server the store is on."""
    parts = urlsplit(os.environ["SHOP_URL"])
    return urlunsplit(parts._replace(path=f"/{name}"))


def worker() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from leasemill.cli import main; main()", "worker", "shop:app"]
    return subprocess.Popen([*command, "--log-level", "error", "--concurrency", "4"], cwd=Path(__file__).parent)


def sell(orders: int, kills: int, seed: int) -> int:
    """Place orders beside a worker that is killed again and again; answers how many were refused at the till."""
    drawn = random.Random(seed)
    refused = 0
    relay = worker()
    try:
        with psycopg.connect(database("shop")) as shop:
            for number in range(orders):
                card_is_refused = drawn.random() < 0.2
                refused += card_is_refused
                place(shop, drawn.choice(CUSTOMERS), drawn.randint(1, 99_999), card_is_refused=card_is_refused)
                time.sleep(drawn.uniform(0, 0.01))
                if number * kills // orders != (number + 1) * kills // orders:
                    time.sleep(drawn.uniform(0.2, 0.8))  # to be somewhere in its work, or still starting
                    relay.kill()
                    relay.wait()
                    relay = worker()
            while is_waiting(shop):
                time.sleep(0.1)
    finally:
        relay.terminate()
        relay.wait()
    return refused


def is_waiting(shop: psycopg.Connection[tuple[int]]) -> bool:
    """Whether a message is still on its way; one that a killed worker held, until its lease is over."""
    with shop.transaction():
        found = shop.execute("select 1 from leasemill.outbox where status in ('PENDING', 'PROCESSING') limit 1")
        return found.fetchone() is not None


def audit(refused: int, kills: int) -> bool:
    with psycopg.connect(database("shop")) as shop, psycopg.connect(database("ledger")) as ledger:
        sold: dict[str, int] = dict(shop.execute("select customer, sum(cents)::int8 from orders group by 1").fetchall())
        booked: dict[str, int] = dict(ledger.execute("select customer, cents from balances").fetchall())
        announced = shop.execute("select announced, count(*) from orders group by 1").fetchall()
        counts = ledger.execute(
            "select (select count(*) from booked), (select count(*) from deliveries), "
            "(select count(*) from (select event, lag(event) over (partition by customer order by number) as before "
            "from booked) as pair where split_part(event, '-', 2)::int8 < split_part(before, '-', 2)::int8)"
        ).fetchone()
    assert counts is not None
    print(f"{counts[0]} orders sold, {refused} refused at the till; the worker was killed {kills} times")
    print(f"{counts[1]} deliveries, {counts[1] - counts[0]} of them again; {counts[2]} events out of order")
    is_right = sold == booked and announced == [(1, counts[0])] and counts[2] == 0
    print(f"the ledger is {'right to the cent' if is_right else f'WRONG: {booked}, and {sold} was sold; {announced}'}")
    return is_right


def main() -> int:
    given = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    given.add_argument("--url", help="postgresql://user@host/database whose server may get two new databases")
    given.add_argument("--orders", type=int, default=200)
    given.add_argument("--kills", type=int, default=3)
    given.add_argument("--seed", type=int, default=1)
    asked = given.parse_args()
    with ExitStack() as stack:
        os.environ["SHOP_URL"] = asked.url or stack.enter_context(PostgresServer()).url()
        with psycopg.connect(os.environ["SHOP_URL"], autocommit=True) as server:
            server.execute("create database shop")
            server.execute("create database ledger")
        for name, tables in (("shop", SHOP), ("ledger", LEDGER)):
            with psycopg.connect(database(name)) as connection:
                connection.execute(tables.encode())
        own = database("shop")
        os.environ["LEASEMILL_URL"] = f"{own}{'&' if '?' in own else '?'}auto_migrate=true"
        app.url = os.environ["LEASEMILL_URL"]
        with app:
            refused = sell(asked.orders, asked.kills, asked.seed)
            return 0 if audit(refused, asked.kills) else 1


if __name__ == "__main__":
    sys.exit(main())
