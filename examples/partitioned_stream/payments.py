"""Payments come as a partitioned stream. Each partition's are booked in order, each once, whoever is killed meanwhile.

`python payments.py make` makes the stream, `consume` books it and may be killed at any moment and started again,
`audit` says whether it holds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sqlite3
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from leasemill import App, FailStatus, WorkLease

QUEUE = "payments"
MAX_RETRIES = 2

# The stream: plain files that stand for a broker. A line is a record, its number the offset ---------------------

STREAM = Path("stream")


@dataclass
class Payment:
    account: str
    cents: int


def partitions() -> list[str]:
    return sorted(path.stem for path in STREAM.glob("*.jsonl"))


def read(partition: str, first: int = 0) -> Iterator[tuple[int, Payment]]:
    """The records of a partition with their offsets, from this one on."""
    with (STREAM / f"{partition}.jsonl").open() as lines:
        for offset, line in islice(enumerate(lines), first, None):
            yield offset, Payment(**json.loads(line))


def position(partition: str) -> int:
    """Where to read on, as a broker keeps it for a consumer: it may be old."""
    path = STREAM / f"{partition}.position"
    return int(path.read_text()) if path.exists() else 0


def keep_position(partition: str, offset: int) -> None:
    path = STREAM / f"{partition}.new"
    path.write_text(str(offset))
    path.replace(STREAM / f"{partition}.position")


def make(records: int) -> None:
    """Payments of twenty accounts in four partitions: an account's are all in one. A few can be booked by nobody."""
    drawn = random.Random(1)
    lines: dict[int, list[str]] = {number: [] for number in range(4)}
    for number in range(records):
        payment = Payment(f"account-{drawn.randrange(20)}", -1 if number % 100 == 50 else drawn.randint(1, 500))
        lines[zlib.crc32(payment.account.encode()) % len(lines)].append(json.dumps(asdict(payment)))
    STREAM.mkdir(exist_ok=True)
    for number, partition in lines.items():
        (STREAM / f"payments-{number}.jsonl").write_text("".join(f"{line}\n" for line in partition))
    print(f"{records} payments in {len(lines)} partitions")


# The effect: another database, which knows nothing of leases ----------------------------------------------------

TABLES = """
create table if not exists booked (
  number integer primary key autoincrement,
  partition text not null,
  record integer not null,
  unique (partition, record)
);
create table if not exists balances (account text primary key, cents integer not null);
create table if not exists tries (partition text not null, record integer not null, process integer not null);
"""


class Unbookable(Exception):
    """Nobody can book this."""


def open_ledger() -> closing[sqlite3.Connection]:
    connection = sqlite3.connect("ledger.db", timeout=30, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.executescript(TABLES)
    return closing(connection)


def book(ledger: sqlite3.Connection, partition: str, offset: int, payment: Payment) -> None:
    """The guard row and the booking are one transaction: booked again, a payment changes nothing."""
    if payment.cents < 0:
        raise Unbookable(f"{payment.cents} cents for {payment.account}")
    ledger.execute("begin immediate")
    with ledger:
        guard = ledger.execute("insert or ignore into booked (partition, record) values (?, ?)", (partition, offset))
        if guard.rowcount == 1:
            ledger.execute(
                "insert into balances values (?, ?) on conflict do update set cents = cents + excluded.cents",
                (payment.account, payment.cents),
            )


# The orchestrator -----------------------------------------------------------------------------------------------


def consume(pace: float) -> None:
    """All partitions beside each other, to their ends."""
    names = partitions()
    with App() as app, ThreadPoolExecutor(len(names)) as pool:
        work = WorkLease(app.store, QUEUE, max_retries=MAX_RETRIES)
        ended = sum(pool.map(partial(consume_partition, work, pace), names))
    print(f"{ended} payments ended")


def consume_partition(work: WorkLease, pace: float, partition: str) -> int:
    """From the last known position, which is never ahead of what has ended; the store says what has ended since."""
    ended = 0
    with open_ledger() as ledger:
        for offset, payment in read(partition, position(partition)):
            lease = work.try_acquire(partition, offset).lease
            if lease is None:
                continue  # it ended in an earlier life
            while not has_ended(work, ledger, partition, offset, payment, lease.token, pace):
                pass
            ended += 1
            if ended % 20 == 0:
                keep_position(partition, offset + 1)
    return ended


def has_ended(
    work: WorkLease, ledger: sqlite3.Connection, partition: str, offset: int, payment: Payment, token: str, pace: float
) -> bool:
    """Try to book a payment and report it; False: to be tried again, still ours."""
    ledger.execute("insert into tries values (?, ?, ?)", (partition, offset, os.getpid()))  # for the audit
    time.sleep(pace)
    try:
        book(ledger, partition, offset, payment)
    except Unbookable as error:
        result = work.fail(partition, token, str(error))
        if result.status is FailStatus.RETRY_SCHEDULED:
            time.sleep(0.01 * 2**result.retry_count)  # when to try again is ours to say
            return False
    else:
        work.succeed(partition, token)
    return True


# The audit ------------------------------------------------------------------------------------------------------


def audit() -> int:
    with App() as app, open_ledger() as ledger:
        found = [fault for partition in partitions() for fault in faults(app, ledger, partition)]
        owed = Counter[str]()
        for partition in partitions():
            for _, payment in read(partition):
                owed[payment.account] += max(0, payment.cents)
        if dict(ledger.execute("select account, cents from balances")) != owed:
            found.append("the balances are not the sums of the payments")
        (booked,) = ledger.execute("select count(*) from booked").fetchone()
        tries, processes = ledger.execute("select count(*), count(distinct process) from tries").fetchone()
    print(f"{booked} payments booked, {tries} tries by {processes} processes")
    print(*found or ["every offset ended, every payment was booked once, in order"], sep="\n")
    return 1 if found else 0


def faults(app: App, ledger: sqlite3.Connection, partition: str) -> Iterator[str]:
    """One sentence for each thing that is not as it should be."""
    good = [offset for offset, payment in read(partition) if payment.cents >= 0]
    bad = [offset for offset, payment in read(partition) if payment.cents < 0]
    lane = app.store.lane(QUEUE, partition)
    if lane is None or lane.head is not None:
        yield f"{partition}: something is in flight or waits"
    elif (numbers(lane.finished), numbers(lane.failed)) != (good, bad):
        yield f"{partition}: not every offset ended as it should: {lane.finished}, failed {lane.failed}"
    rows = ledger.execute("select record from booked where partition = ? order by number", (partition,))
    if (booked := [record for (record,) in rows]) != good:
        yield f"{partition}: {len(booked)} of {len(good)} are booked, or not in order"
    rows = ledger.execute("select record, count(*) from tries where partition = ? group by record", (partition,))
    tries = dict(rows)
    yield from (f"{partition}: {offset} was given up early" for offset in bad if tries.get(offset, 0) <= MAX_RETRIES)


def numbers(ranges: tuple[tuple[int, int], ...]) -> list[int]:
    return [number for first, last in ranges for number in range(first, last + 1)]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["make", "consume", "audit"])
    parser.add_argument("--records", type=int, default=400, help="how many payments to make")
    parser.add_argument("--pace", type=float, default=0.005, help="seconds of work for each payment")
    arguments = parser.parse_args()
    if arguments.action == "audit":
        return audit()
    if arguments.action == "make":
        make(arguments.records)
    else:
        consume(arguments.pace)
    return 0


if __name__ == "__main__":
    sys.exit(main())
