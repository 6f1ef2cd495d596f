"""Which tables? Three layouts side by side: drain rate, log bytes per job, dead rows, drain under a held snapshot.

    python -m benchmarks.postgres_layouts [JOBS] [ROUNDS]

Each keeps execution records and checks token and expiry in its ack. `state`: one jobs table with a state column, and
executions. `ready`: jobs written once, executions updated at their end, a small table of what can be claimed. `leases`:
the same, but a live lease has a small table of its own, and an execution is written once, when it has ended.
"""

from __future__ import annotations

import secrets
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, LiteralString

import psycopg

from leasemill.testing.postgres import PostgresServer

BATCH = 200
NOW = "(extract(epoch from clock_timestamp()) * 1000000)::int8"
JOBS = """
create table jobs (
    no bigint generated always as identity primary key, id text collate "C" not null unique, queue text not null,
    kind text not null, payload text not null, lane text, priority int2 not null, created_at int8 not null
);
create sequence fence;
"""
READY = """
create table ready (
    queue text collate "C" not null, rank int2 not null, available_at int8 not null, seq int8 not null,
    no int8 not null, attempt int4 not null, retries int4 not null, expirations int4 not null,
    primary key (queue, rank, available_at, seq)
) with (fillfactor = 90);
"""
ENQUEUE_READY = f"""
with given as (select id, payload from unnest(%(ids)b::text[], %(payloads)b::text[]) as given (id, payload)),
inserted as (
    insert into jobs (id, queue, kind, payload, priority, created_at)
    select id, 'work', 'kind', payload, 0, {NOW} from given on conflict (id) do nothing returning no, created_at
)
insert into ready select 'work', 9, created_at, no, no, 0, 0, 0 from inserted
"""
PICK_READY = f"""
with picked as materialized (
    select ctid, no, attempt, retries, expirations, row_number() over () as turn from (
        select ctid, no, attempt, retries, expirations from ready
        where queue = 'work' and rank = 9 and available_at <= {NOW} and (available_at, seq) >= (%(at)b, %(seq)b)
        order by available_at, seq limit {BATCH} for update skip locked
    ) as first
), taken as (delete from ready where ctid = any (array (select ctid from picked)) returning available_at, seq),
"""


@dataclass(frozen=True)
class Layout:
    name: str
    schema: str
    enqueue: str
    claim: str
    ack: str
    has_position: bool = True


STATE = Layout(
    "state",
    """
    create table jobs (
        no bigint generated always as identity primary key, id text collate "C" not null unique, queue text not null,
        kind text not null, payload text not null, lane text, priority int2 not null, created_at int8 not null,
        state int2 not null, available_at int8 not null, attempt int4 not null, retries int4 not null
    ) with (fillfactor = 70);
    create index on jobs (queue, (9 - priority), available_at, no) where state = 0;
    create table executions (
        no int8 not null, attempt int4 not null, fence int8 not null, token text not null, worker text not null,
        leased_at int8 not null, expires_at int8 not null, finished_at int8, status int2 not null,
        primary key (no, attempt)
    ) with (fillfactor = 70);
    create index on executions (expires_at) where status < 3;
    create sequence fence;
    """,
    f"""
    insert into jobs (id, queue, kind, payload, priority, created_at, state, available_at, attempt, retries)
    select id, 'work', 'kind', payload, 0, {NOW}, 0, {NOW}, 0, 0
    from unnest(%(ids)b::text[], %(payloads)b::text[]) as given (id, payload) on conflict (id) do nothing
    """,
    f"""
    with picked as materialized (
        select no from jobs where state = 0 and queue = 'work' and 9 - priority = 9 and available_at <= {NOW}
          and (available_at, no) >= (%(at)b, %(seq)b)
        order by available_at, no limit {BATCH} for update skip locked
    ), taken as (
        update jobs set state = 1, attempt = attempt + 1 from picked where jobs.no = picked.no
        returning jobs.no, jobs.id, jobs.payload, jobs.attempt, jobs.available_at, jobs.no as seq
    ), numbered as (select *, row_number() over (order by available_at, seq) as turn from taken), leased as (
        insert into executions select no, attempt, nextval('fence'), (%(tokens)b::text[])[turn], 'worker', {NOW},
            {NOW} + 30000000, null, 0 from numbered returning no, token
    ) select numbered.no, leased.token, id, payload, available_at, seq from numbered join leased using (no)
    """,
    f"""
    with given as (select no, token from unnest(%(nos)b::int8[], %(tokens)b::text[]) as given (no, token)),
    ended as (
        update executions set status = 3, finished_at = {NOW} from given
        where executions.no = given.no and executions.token = given.token and status < 3 and expires_at > {NOW}
        returning executions.no
    ) update jobs set state = 2 from ended where jobs.no = ended.no returning jobs.no
    """,
)
UPDATED = Layout(
    "ready",
    JOBS
    + READY
    + """
    create table executions (
        no int8 not null, attempt int4 not null, fence int8 not null, token text not null, worker text not null,
        leased_at int8 not null, expires_at int8 not null, finished_at int8, status int2 not null,
        retries int4 not null, expirations int4 not null, primary key (no, attempt)
    ) with (fillfactor = 70);
    create index on executions (expires_at) where status < 3;
    """,
    ENQUEUE_READY,
    PICK_READY
    + f"""leased as (
        insert into executions
        select no, attempt + 1, nextval('fence'), (%(tokens)b::text[])[turn], 'worker', {NOW}, {NOW} + 30000000, null,
            0, retries, expirations from picked returning no, token
    ), last as (select available_at, seq from taken order by available_at desc, seq desc limit 1)
    select leased.no, leased.token, id, payload, last.available_at, last.seq
    from leased join jobs using (no) cross join last
    """,
    f"""
    with given as (select no, token from unnest(%(nos)b::int8[], %(tokens)b::text[]) as given (no, token))
    update executions set status = 3, finished_at = {NOW} from given
    where executions.no = given.no and executions.token = given.token and status < 3 and expires_at > {NOW}
    returning executions.no
    """,
)
LEASES = Layout(
    "leases",
    JOBS
    + READY
    + """
    create table leases (
        no int8 primary key, attempt int4 not null, fence int8 not null, token text not null, worker text not null,
        leased_at int8 not null, expires_at int8 not null, status int2 not null, retries int4 not null,
        expirations int4 not null
    );
    create index on leases (expires_at);
    create table executions (
        no int8 not null, slot int4 not null, attempt int4 not null, fence int8 not null, token text not null,
        worker text not null, leased_at int8 not null, expires_at int8 not null, finished_at int8, status int2 not null,
        retries int4 not null, expirations int4 not null, primary key (no, slot)
    );
    """,
    ENQUEUE_READY,
    PICK_READY
    + f"""leased as (
        insert into leases
        select no, attempt + 1, nextval('fence'), (%(tokens)b::text[])[turn], 'worker', {NOW}, {NOW} + 30000000, 0,
            retries, expirations from picked returning no, token
    ), last as (select available_at, seq from taken order by available_at desc, seq desc limit 1)
    select leased.no, leased.token, id, payload, last.available_at, last.seq
    from leased join jobs using (no) cross join last
    """,
    f"""
    with given as (select no, token from unnest(%(nos)b::int8[], %(tokens)b::text[]) as given (no, token)),
    ended as (
        delete from leases using given
        where leases.no = given.no and leases.token = given.token and expires_at > {NOW}
        returning leases.*
    )
    insert into executions select no, 0, attempt, fence, token, worker, leased_at, expires_at, {NOW}, 3, retries,
        expirations from ended returning no
    """,
)
LAYOUTS = (STATE, UPDATED, LEASES)


def main() -> None:
    jobs, rounds = (int(one) for one in [*sys.argv[1:], *["60000", "3"][len(sys.argv) - 1 :]])
    with PostgresServer(settings={"autovacuum": "off"}) as server:  # or what is dead depends on when it came by
        print(
            f"{server.version}; {jobs:,} jobs, batches of {BATCH}, claim and ack on two connections, fsync on, "
            "autovacuum off; dead rows: what the drain leaves for vacuum, after what pages pruned by themselves"
        )
        measured: dict[tuple[str, bool], list[dict[str, float]]] = {}
        for _ in range(rounds):
            for layout in LAYOUTS:
                for held in (False, True):
                    measured.setdefault((layout.name, held), []).append(measure(server.url(), layout, jobs, held))
    print("| layout | held snapshot | enqueue/s | drain/s | last fifth/s | log bytes/job | dead rows/job |")
    print("|---|---|---|---|---|---|---|")
    for (name, held), runs in measured.items():
        middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        print(
            f"| {name} | {'yes' if held else 'no'} | {middle['enqueue']:,.0f} | {middle['drain']:,.0f} "
            f"| {middle['last']:,.0f} | {middle['wal']:,.0f} | {middle['dead']:.2f} |"
        )


def measure(url: str, layout: Layout, jobs: int, held: bool) -> dict[str, float]:
    with connect(url) as admin:
        admin.execute("drop schema if exists bench cascade")
        admin.execute("create schema bench")
    with connect(url) as first, connect(url) as second, connect(url, autocommit=False) as holder:
        first.execute(as_literal(layout.schema), prepare=False)
        first.execute("checkpoint")
        started = wal(first)
        enqueued_s = enqueue(first, layout, jobs)
        first.execute("analyze")
        if held:
            holder.execute("set transaction isolation level repeatable read")
            holder.execute("select count(*) from jobs")
        times = drain(first, second, layout, jobs)
        written = wal(first) - started
        for connection in (first, second):
            connection.execute("select pg_stat_force_next_flush()")
        dead = one(first, "select coalesce(sum(n_dead_tup), 0) from pg_stat_user_tables where schemaname = 'bench'")
        holder.rollback()
    fifth = len(times) // 5
    return {
        "enqueue": jobs / enqueued_s,
        "drain": jobs / times[-1],
        "last": fifth * BATCH / (times[-1] - times[-1 - fifth]),
        "wal": written / jobs,
        "dead": dead / jobs,
    }


def enqueue(connection: psycopg.Connection[Any], layout: Layout, jobs: int) -> float:
    begun = time.perf_counter()
    for first in range(0, jobs, 1_000):
        ids = [f"{time.time_ns():016x}-{number:08d}-{secrets.token_hex(4)}" for number in range(first, first + 1_000)]
        connection.execute(
            as_literal(layout.enqueue), {"ids": ids, "payloads": ['{"account": "a1", "cents": 500}'] * 1_000}
        )
    return time.perf_counter() - begun


def drain(claiming: psycopg.Connection[Any], acking: psycopg.Connection[Any], layout: Layout, jobs: int) -> list[float]:
    """When each batch was acknowledged, from the beginning."""
    claimed: SimpleQueue[list[tuple[Any, ...]]] = SimpleQueue()
    times: list[float] = []
    begun = time.perf_counter()

    def ack() -> None:
        acked = 0
        while acked < jobs:
            rows = claimed.get()
            given = {"nos": [row[0] for row in rows], "tokens": [row[1] for row in rows]}
            acked += len(acking.execute(as_literal(layout.ack), given, binary=True).fetchall())
            times.append(time.perf_counter() - begun)

    thread = threading.Thread(target=ack)
    thread.start()
    at = seq = got = 0
    while got < jobs:
        tokens = [secrets.token_hex(16) for _ in range(BATCH)]
        rows = claiming.execute(
            as_literal(layout.claim), {"tokens": tokens, "at": at, "seq": seq}, binary=True
        ).fetchall()
        got += len(rows)
        at, seq = max((row[4], row[5]) for row in rows)
        claimed.put(rows)
    thread.join()
    return times


def connect(url: str, *, autocommit: bool = True) -> psycopg.Connection[Any]:
    options = "-c search_path=bench -c jit=off -c plan_cache_mode=force_generic_plan -c enable_seqscan=off"
    return psycopg.connect(url, autocommit=autocommit, prepare_threshold=0, options=options)


def wal(connection: psycopg.Connection[Any]) -> int:
    return int(one(connection, "select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"))


def one(connection: psycopg.Connection[Any], query: LiteralString) -> Any:
    row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def as_literal(query: str) -> LiteralString:
    """All text in it is this module's own."""
    return query


if __name__ == "__main__":
    main()
