"""Faults put into the SQL statements, which the conformance suite must notice, or a file beside this one where only two
sessions can show it; run by `tests.lab.mutations`."""

from __future__ import annotations

import sys
from itertools import count
from typing import Final

import psycopg
from psycopg import sql

from leasemill.testing.postgres import PostgresServer
from tests.lab.mutations import SOURCE, Mutation, Table, main

POSTGRES: Final = SOURCE / "leasemill/store/postgres"
LOCKED: Final = "tests/store/postgres/test_locked_rows.py"
BLOCKS: Final = "tests/store/postgres/test_guards.py"
FAULTS: Final = "tests/store/postgres/test_faults.py"
EXACT: Final = "tests/store/postgres/test_exact.py"
ISOLATION: Final = "tests/store/postgres/test_isolation.py"
WORK_LEASE: Final = "tests/store/postgres/test_work_lease.py"
LIMIT_RACES: Final = "tests/store/postgres/test_limits_races.py"
SQL_COMMIT: Final = "tests/store/postgres/test_sql_commit.py"
SQL_BOUNDS: Final = "tests/store/postgres/test_sql_bounds.py"
COMMIT_FAULTS: Final = "tests/store/postgres/test_user_commit_faults.py"
GROUPS: Final = "tests/store/postgres/test_groups.py"
HANDOVER: Final = "tests/store/postgres/test_handover.py"
SHARED: Final = "tests/store/postgres/test_shared_enqueues.py"
TERMS: Final = "tests/store/postgres/test_terms.py"
WAYS: Final = "tests/store/postgres/test_enqueue_ways.py"
RACES: Final = "tests/store/postgres/test_races.py"
WATERMARKS: Final = "tests/store/postgres/test_watermarks.py"

TOKEN: Final = "\n        and token = ({tokens}::text[])[width_bucket(no, {nos}::int8[])]"
GIVEN_TOKEN: Final = "\n        and ((no, token) in (select * from unnest({nos}::int8[], {tokens}::text[]))) is true"
HELD: Final = "\n        and expires_at > {schema}.clock({now}::int8)"
HELD_OR_COMMITTED: Final = "\n        and (committed_at is not null or expires_at > {schema}.clock({now}::int8))"

SUITES: Final = ("TestPostgres", "TestPostgresByTheLoop")
"""The conformance suite, driven by threads and by an event loop: each must notice."""

MUTATIONS: Final = (
    Mutation(
        "a job takes its key in all queues",
        "U1",
        "take_keys",
        "where unique_keys.queue = given.queue and unique_keys.key = given.key",
        "where unique_keys.key = given.key",
    ),
    Mutation(
        "the holder of a key is looked for in all queues",
        "U1",
        "key",
        "where unique_keys.queue = any (array[{queue}::text, '']) and unique_keys.key",
        "where unique_keys.key",
    ),
    Mutation(
        "a key that another queue forgets is forgotten",
        "U3 U6",
        "forget_keys",
        "where unique_keys.queue = given.queue and unique_keys.key = given.key\n"
        "        and not {schema}.is_key_held(unique_keys.no, unique_keys.until_at, {schema}.clock({now}::int8))",
        "where unique_keys.key = given.key",
        tests="tests/store/postgres/test_unique.py",
    ),
    Mutation(
        "a death lets earlier versions in",
        "L10",
        "exact/decide.py",
        "number > known.format and number in KNOWN_SINCE",
        "False",
        "tests/store/postgres/test_older_version.py",
    ),
    Mutation(
        "an admission begins while another is under way",
        "N2 N3",
        "admit",
        "\n        where current_setting('leasemill.admits', true) = 'yes' order by",
        "\n        order by",
        SHARED,
    ),
    # An ack with a claim
    Mutation("a paused queue hands over", "C8", "hand_over", " and not is_paused", ""),
    Mutation("a queue under a limit hands over", "C8", "hand_over", " and not is_limited", "", HANDOVER),
    Mutation("what is not due is handed over", "C8", "hand_over", "where available_at <= now and not", "where not"),
    Mutation("a lane's next passes what comes first", "C8", "hand_over", " and not exists (select from others)", ""),
    Mutation("nothing is ever handed over", "C8", "hand_over", "number <= {limit}::int8 and", "false and", HANDOVER),
    Mutation("more is handed over than was asked for", "C8", "hand_over", "number <= {limit}::int8 and", "true and"),
    Mutation("a spent token is handed over", "C8", "hand_over", "where n.attempt > 0 and", "where false and"),
    Mutation(
        "what nobody asked for is handed over",
        "C8",
        "hand_over",
        "join served on served.name = next.queue",
        "join served on true",
    ),
    Mutation(
        "what is handed over is claimable too",
        "C8",
        "hand_over",
        "where no not in (select picked.no from picked)",
        "select * from next",
    ),
    Mutation(
        "a repeat of what was granted finds nothing",
        "C5 C8",
        "_grant",
        "having count(*) > 0 and {request_id}",
        "having false and {request_id}",
    ),
    Mutation(
        "a repeat does not see what was granted meanwhile",
        "C5",
        "request_known",
        "select exists",
        "select false and exists",
        RACES,
    ),
    # Reports
    Mutation("ack checks no token", "L2 I2", "_ended", GIVEN_TOKEN, ""),
    Mutation("ack checks no time", "L1 L3", "_ended", HELD_OR_COMMITTED, ""),
    Mutation(
        "ack ends a lane's head and leaves its lane",
        "N4",
        "_ended",
        "(lane is null or (queue, lane) in",
        "(true or (queue, lane) in",
        EXACT,
    ),
    Mutation("ack keeps no result", "X7", "_ended", "then given_result else result end", "then result else result end"),
    Mutation(
        "ack replaces the result of a commit",
        "L6",
        "_ended",
        "then given_result else result end",
        "then given_result else given_result end",
    ),
    Mutation(
        "ack of a lane's head locks no lane",
        "N4",
        "_ended",
        "lane = given.lane for update",
        "lane = given.lane",
        ISOLATION,
    ),
    Mutation("nack checks no token", "L2 I2", "nack", TOKEN, ""),
    Mutation("nack checks no time", "L1 L3", "nack", HELD, ""),
    Mutation("nack takes back a commit", "X5", "nack", " and committed_at is null", ""),
    Mutation("nack counts no retry", "F2", "nack", "coalesce(retries, 0) + 1 as", "coalesce(retries, 0) as"),
    Mutation("retries have no limit", "F2", "nack", "[1])\n        and expires", "[1]) + 1000\n        and expires"),
    Mutation("back-off does not double", "F1", "nack", "2::float8 ^", "1::float8 ^"),
    Mutation("back-off has no cap", "F1", "nack", "[6])::float8", "[6])::float8 * 1000"),
    Mutation("unwritten terms have another back-off", "I5", "nack", "({unwritten}::int8[])[5]", "7", TERMS),
    Mutation(
        "unwritten terms have another lease",
        "I5",
        "extend",
        "+ coalesce(terms[2], ({unwritten}::int8[])[2])",
        "+ 7",
        TERMS,
    ),
    Mutation(
        "a delay that was asked for is not kept",
        "F5",
        "nack",
        "coalesce(({delays}::int8[])[number], trunc",
        "coalesce(null, trunc",
    ),
    Mutation("release checks no token", "L2 I2", "release", TOKEN, ""),
    Mutation("release checks no time", "L1 L3", "release", HELD, ""),
    Mutation("release takes back a commit", "X5", "release", " and committed_at is null", ""),
    Mutation(
        "a released job loses its place",
        "C3",
        "release",
        "[number], available_at) as due_at",
        "[number], now) as due_at",
    ),
    Mutation("start checks no token", "L2 I2", "start", TOKEN, ""),
    Mutation("start checks no time", "L1 L3", "start", HELD, ""),
    Mutation(
        "a start may be before its lease", "X3", "start", "greatest(leased_at, {schema}", "least(9e18::int8, {schema}"
    ),
    Mutation("extend checks no token", "L2 I2", "extend", " and leases.token = given.token", ""),
    Mutation(
        "extend revives a lease",
        "L3",
        "extend",
        " and leases.expires_at > {schema}.clock({now}::int8)\n        offset 0",
        "\n        offset 0",
    ),
    Mutation(
        "extend counts a lease it could not lock",
        "L9",
        "extend",
        "coalesce(extended.expires_at, held.expires_at)",
        "coalesce(extended.expires_at, held.expires_at + 1)",
        LOCKED,
    ),
    Mutation("extend waits for a locked lease", "L9", "extend", "for update skip locked", "for update", LOCKED),
    Mutation("commit checks no token", "L2 I2", "0006_commit", " token = lease_token and committed", " committed"),
    Mutation("commit checks no time", "L1 L3", "0006_commit", " and expires_at > at", ""),
    Mutation("a job commits twice", "X4 L6", "0006_commit", " and committed_at is null", ""),
    Mutation(
        "a block's commit checks no token",
        "X4 L2",
        "0006_commit",
        " token = lease_token and committed",
        " committed",
        BLOCKS,
    ),
    Mutation("a block's commit checks no time", "X6 L3", "0006_commit", " and expires_at > at", "", BLOCKS),
    Mutation("a block commits what has committed", "X4", "0006_commit", " and committed_at is null", "", BLOCKS),
    Mutation(
        "a block commits what is not held", "X4", "0006_commit", "if must_hold and not", "if false and not", BLOCKS
    ),
    # Enqueue
    Mutation(
        "a job is due before it was enqueued",
        "E3",
        "0025_due_at",
        "else greatest(created_at, run_at) end",
        "else run_at end",
    ),
    Mutation("a job's priority is not kept", "C2", "0025_due_at", "9 - priority", "9"),
    Mutation("a due job's queue is not notified", "E1", "_notified", "due_at <= created_at then", "false then", WAYS),
    Mutation("a delay is not kept", "E3", "0025_due_at", "created_at + coalesce(delay_us, 0)", "created_at"),
    Mutation("a lane's job is ready at once", "N3 N1", "_placed", "inserted where lane is null", "inserted"),
    # Claim
    Mutation("a paused queue gives jobs", "O3 C6", "claim", " and not is_paused", ""),
    Mutation("jobs are claimed before they are due", "C1 E3", "claim", " and available_at <= now", ""),
    Mutation(
        "a claim waits for a job that another takes", "C7", "claim", "for update skip locked", "for update", LOCKED
    ),
    Mutation(
        "a claim gives more than was asked for",
        "C4",
        "claim",
        "    ) as first\n    limit {limit}::int8",
        "    ) as first",
    ),
    Mutation(
        "later jobs go first",
        "C2",
        "claim",
        "        order by available_at, seq\n",
        "        order by available_at desc, seq desc\n",
    ),
    Mutation(
        "fences do not follow the order of jobs",
        "C2 I3",
        "claim",
        "using (number) order by number\n",
        "using (number) order by number desc\n",
    ),
    Mutation("a repeated claim gives what has expired", "C5", "claim", " and expires_at > now\n), place", "\n), place"),
    Mutation(
        "a repeated claim gives others too", "C5", "claim", "where not exists (select from repeated)", "where true"
    ),
    Mutation(
        "a claim that is repeated while it is under way gives others",
        "C5",
        "_alone",
        "case when not pg_try_advisory_xact_lock({request_key}::int8)",
        "case when false",
        FAULTS,
    ),
    Mutation(
        "a claim that is repeated as it ends gives others",
        "C5",
        "_grant",
        "when exists (select from {schema}.requests as seen where seen.id = excluded.id)",
        "when true",
        FAULTS,
    ),
    Mutation(
        "a job gets a token it has had",
        "I2",
        "claim",
        "select * from numbered where number < coalesce((select number from stop), number + 1)",
        "select * from numbered",
    ),
    Mutation(
        "the kind's policy goes before the queue's",
        "I5",
        "_terms",
        "coalesce(j.policy[1], p.policy[1], k.policy[1],",
        "coalesce(j.policy[1], k.policy[1], p.policy[1],",
    ),
    Mutation(
        "the job's lease is not asked for",
        "I5 L1",
        "_lease_us",
        "coalesce(j.policy[2], p.policy[2],",
        "coalesce(p.policy[2],",
    ),
    # Watermarks
    Mutation(
        "a watermark moves while somebody writes", "C4", "ready_writers", "and granted and", "and false and", WATERMARKS
    ),
    Mutation(
        "a watermark moves before it is proven",
        "C4",
        "move_watermarks",
        "coalesce(next_at = proven_at, false) as is_proven",
        "next_at is not null as is_proven",
        WATERMARKS,
    ),
    Mutation(
        "a watermark passes a job",
        "C4",
        "move_watermarks",
        "then least(next_at, first_at) else low_at",
        "then next_at else low_at",
        WATERMARKS,
    ),
    Mutation(
        "a watermark moves while a job is put before it",
        "C1",
        "0005_watermarks",
        "greatest(watermarks.low_at, watermarks.next_at)",
        "watermarks.low_at",
        WATERMARKS,
    ),
    Mutation(
        "a released job lowers no watermark",
        "C1",
        "release",
        "array_agg(due_at)) from released",
        "array_agg(due_at)) from released where false",
        WATERMARKS,
    ),
    Mutation(
        "a lane's next head lowers no watermark",
        "N4 C8",
        "_heads_ready",
        "from left_over having count(*) > 0",
        "from left_over having false",
        WATERMARKS,
    ),
    Mutation(
        "an admitted job lowers no watermark",
        "N3",
        "admit",
        "array_agg(available_at)) from made_ready",
        "array_agg(available_at)) from made_ready where false",
        WATERMARKS,
    ),
    Mutation(
        "a redriven job lowers no watermark",
        "O2",
        "exact/save.py",
        '        from ready_come\n    )"""',
        '        from ready_come where false\n    )"""',
        WATERMARKS,
    ),
    Mutation(
        "a claim begins at a watermark ahead of the clock", "L8", "claim", " and low_at <= now\n", "\n", WATERMARKS
    ),
    # Expire
    Mutation(
        "the latest expired goes first",
        "L7",
        "expired",
        "order by leases.expires_at, leases.fence",
        "order by leases.expires_at desc, leases.fence",
    ),
    Mutation(
        "expire waits for a locked lease",
        "L7",
        "expired",
        "for update of leases skip locked",
        "for update of leases",
        LOCKED,
    ),
    Mutation(
        "expire waits for a locked lane",
        "L7",
        "expired",
        "        for update skip locked\n    ) as free",
        "        for update\n    ) as free",
        LOCKED,
    ),
    # Lanes
    Mutation("a lane has two heads", "N1 N3", "admit", "locked.head is null and come.place = 1", "come.place = 1"),
    Mutation(
        "the last of a lane is admitted first",
        "N2",
        "admit",
        "order by first.no) as place",
        "order by first.no desc) as place",
    ),
    Mutation("an admission waits for a locked lane", "N6", "admit", "for update skip locked", "for update", LOCKED),
    Mutation(
        "the last of a line becomes head",
        "N2",
        "_next_in_lanes",
        "order by waiting.turn limit 1",
        "order by waiting.turn desc limit 1",
    ),
    # The exact path
    Mutation(
        "a decision locks no lane",
        "N4",
        "lock",
        "from made) is not null\n        for update",
        "from made) is not null",
        LOCKED,
    ),
    Mutation(
        "a decision locks no lease",
        "X5 X6",
        "lock",
        "(select nos from concerned)::int8[]) order by no for update",
        "(select nos from concerned)::int8[])",
        COMMIT_FAULTS,
    ),
    Mutation(
        "a lane is not made before it is used",
        "N12",
        "lock",
        "where {makes_lanes}::bool\n",
        "where false\n",
        WORK_LEASE,
    ),
    Mutation("a row that has gone is not noticed", "O1 C1", "exact/save.py", '" and ".join(counts)', '"true"', EXACT),
    Mutation(
        "a lease that was not locked is ended",
        "O1 X4",
        "exact/change.py",
        "row.no in known and row.no not in",
        "False and row.no not in",
        EXACT,
    ),
    Mutation(
        "a queue's mode is changed",
        "I7",
        "exact/save.py",
        "where queues.mode is null or excluded",
        "where true or excluded",
        EXACT,
    ),
    Mutation("a refusal is saved without its attempt", "L5", "rows/jobs.py", "        attempt=refusal.attempt,\n", ""),
    Mutation(
        "a final failure is saved as any other", "F2", "rows/jobs.py", "is_final=execution.is_final,", "is_final=False,"
    ),
    Mutation(
        "a lane forgets its finished offsets",
        "N10 N8",
        "exact/change.py",
        "finished=ranges_text(lane.finished)",
        "finished=None",
    ),
    Mutation(
        "executions of a forgotten job stay",
        "O5 N10",
        "exact/change.py",
        '"executions": {no for no, _ in',
        '"nothing": {no for no, _ in',
    ),
    Mutation(
        "what an operator did is not recorded", "O8", "exact/change.py", "for one in state.actions]", "for one in ()]"
    ),
    # Retention
    Mutation(
        "retention goes by number alone",
        "O7",
        "prune",
        "<= surplus.count or listed.at < {before}::int8)",
        "<= surplus.count)",
    ),
    Mutation(
        "retention goes by age alone", "O7", "prune", "(listed.number <= surplus.count or listed.at", "(listed.at"
    ),
    # Limits
    Mutation(
        "a place outlives its lease", "T3", "open_gates", "[]) and not exists (", "[]) and false and not exists ("
    ),
    Mutation(
        "a place is free while its lease is held", "T1", "open_gates", "[]) and not exists (", "[]) or not exists ("
    ),
    Mutation(
        "a freed place opens no gate",
        "T3",
        "open_gates",
        "select gates.ctid as at_ctid from {schema}.gates\n        where gates.name",
        "select gates.ctid as at_ctid from {schema}.gates\n        where false and gates.name",
    ),
    Mutation(
        "one lease more than there are places",
        "T1",
        "limits/choose.py",
        "self.held[limit] >= places",
        "self.held[limit] > places",
    ),
    Mutation(
        "the leases of a queue with a limit are not counted",
        "T1",
        "load_limited",
        "select count(*) from {schema}.leases where leases.queue = substr(used.name, 7) and leases.is_limited",
        "select 0::int8",
    ),
    Mutation("a lease is granted uncounted", "T1", "_grant", ", nullif(is_own, false)", ", null::bool"),
    Mutation(
        "leases from before a limit are not counted",
        "T1",
        "count_leases",
        "set is_limited = true",
        "set is_limited = null",
    ),
    Mutation("a grant is charged to no rate", "T10 T11", "limits/choose.py", "if terms.rate is not None:", "if False:"),
    Mutation("a claim takes jobs ahead of its slots", "T8", "limits/choose.py", "and self._slots <= 0", "and False"),
    Mutation(
        "gates stay shut when numbers change",
        "T6",
        "keep_limits",
        "set is_open = true, opens_at = null",
        "set is_open = false",
    ),
    Mutation(
        "a changed rate keeps its instant",
        "T14",
        "keep_limits",
        "set tat = given.most_tat from",
        "set tat = rates.tat from",
    ),
    Mutation("a throttled limit is not held", "T13", "hold_rates", "do update set tat = excluded.tat", "do nothing"),
    Mutation(
        "claims under one limit do not take turns",
        "T1",
        "lock_limits",
        "count(pg_advisory_xact_lock(key))",
        "count(key)",
        LIMIT_RACES,
    ),
    # Groups
    Mutation(
        "the last end of a group is counted and causes nothing",
        "B2",
        "ack_members",
        "when sealed_at is null or total >",
        "when true or total >",
    ),
    Mutation(
        "ends of members are not counted", "B1", "ack_members", "groups.succeeded + held.count", "groups.succeeded"
    ),
    Mutation(
        "members of a group are not counted",
        "B1",
        "enqueue_members",
        "select group_id, count(*) from inserted",
        "select group_id, 0 from inserted",
    ),
    Mutation(
        "a sealed group takes members",
        "B1",
        "enqueue_members",
        "(groups.sealed_at is null or groups.id = (",
        "(true or groups.id = (",
    ),
    Mutation(
        "members may not add members",
        "B5",
        "enqueue_members",
        "select jobs.group_id from {schema}.jobs where jobs.id = {member}::text",
        "select {member}::text where false",
    ),
    Mutation("who seals waits for no members", "B1", "lock_members", " for update", "", GROUPS),
    Mutation("who adds members keeps nobody waiting", "B1", "enqueue_members", "        for key share\n", "", GROUPS),
    Mutation(
        "two ends of members do not wait for each other",
        "B2",
        "lock",
        "        where groups.id = named.id and (select count(*) from ended) is not null\n        for no key update",
        "        where groups.id = named.id and (select count(*) from ended) is not null",
        GROUPS,
    ),
    Mutation(
        "COMMIT does not look at the lease",
        "X4",
        "0013_commit_guard",
        "new.result, new.now, true)",
        "new.result, new.now, false)",
        SQL_COMMIT,
    ),
    Mutation(
        "a lost lease is noticed by COMMIT alone",
        "L2",
        "0013_commit_guard",
        "if {schema}.lease_status(job_id, lease_token, now) is distinct from 'held' then",
        "if false then",
        SQL_COMMIT,
    ),
    Mutation("SQL takes JSON of any depth", "I4", "0023_enqueue_bounds", "$.**{{500}} ?", "$.**{{700}} ?", SQL_BOUNDS),
    Mutation(
        "SQL takes characters of the upper planes that nobody can see",
        "I4",
        "0023_enqueue_bounds",
        "\\U000110bd",
        "",
        SQL_BOUNDS,
    ),
    Mutation(
        "SQL takes headers that are lists",
        "I4",
        "0024_unique_queues",
        """'strict $.* ? (@.type() != "string")'""",
        """'$.* ? (@.type() != "string")'""",
        SQL_BOUNDS,
    ),
    Mutation(
        "groups are forgotten before their members",
        "B4",
        "prune_groups",
        "not exists (select from {schema}.jobs where jobs.group_id = groups.id offset 0)",
        "true",
    ),
)

TABLE: Final = Table(
    "SQL",
    MUTATIONS,
    {str(file.relative_to(POSTGRES)): file for file in POSTGRES.rglob("*.py")}
    | {file.stem: file for file in POSTGRES.rglob("*.sql")},
    tuple(f"tests/store/postgres/test_postgres_conformance.py::{suite}" for suite in SUITES),
)
SETTINGS: Final = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

_numbers = count(1)


def own_database(server: PostgresServer) -> dict[str, str]:
    """One for each mutation: tests that run at the same time must not meet in the user's tables."""
    name = f"mutation_{next(_numbers)}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    return {"LEASEMILL_TEST_POSTGRES_URL": server.url(name)}


if __name__ == "__main__":
    with PostgresServer(settings=SETTINGS) as server:
        sys.exit(main(TABLE, lambda: own_database(server), sys.argv[1:]))
