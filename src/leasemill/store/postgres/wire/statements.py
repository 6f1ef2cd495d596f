"""The SQL files of a store, each read once.

A file is a format string: `{schema}` is the name of the store's schema, every other field a parameter or one of the
clauses below. Parameters are numbered here (`$1`, `$2`, …), so that the driver has nothing to parse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any, Final, NamedTuple

from psycopg import sql

from leasemill.errors import Invalid
from leasemill.store.postgres.wire.arrays import plain_value

FOLDER: Final = Path(__file__).parents[1]
FILES: Final = {file.stem: file for file in FOLDER.rglob("*.sql")}
IF_KNOWN: Final = "on conflict on constraint job_id do nothing"
IF_UNKNOWN: Final = "not exists (select from {schema}.jobs where jobs.id = given.id offset 0) and "
INSERTED: Final = {
    "placed": """made_ready as (
    insert into {schema}.ready (queue, rank, available_at, seq)
    select queue, 9 - priority, due_at, no from inserted where lane is null
), arrived as (
    insert into {schema}.arrivals (no, queue, lane)
    select no, queue, lane from inserted where lane is not null
)""",
    "notified": """notified as (
    select count(pg_notify({channel}::text, due_queue)) as count
    from (
        select distinct case when due_at <= created_at then queue else '' end as due_queue
        from inserted where {channel}::text is not null
    ) as changed
)""",
}
"""New jobs take their places, or arrive at their lanes; who waits for them is notified."""
OF_NO_GROUP: Final = INSERTED | dict.fromkeys(
    ("group_id", "group_ids", "refused", "if_not_refused", "joined", "refused_groups"), ""
)
OF_NO_MEMBERS: Final = dict.fromkeys(("members", "members_counted", "all_or_none"), "")
ALL_OR_NONE: Final = """, case when count(*) < cardinality({nos}::int8[])
        then {schema}.fail('LM004', 'a lease is not held') end as failed"""
AND_LOCK: Final = """, (
        select set_config('leasemill.limits_locked', bool_and(pg_try_advisory_xact_lock(key))::text, true)
        from (
            select distinct hashtextextended('{schema}.limits ' || name, 0) as key
            from unnest({names}::text[]) as given (name)
        ) as named
    ) as limits_locked"""
"""As `lock_names` does without waiting: the statements that follow have newer snapshots."""
OF_GROUPS: Final = {**OF_NO_GROUP, "group_id": ", group_id", "group_ids": ", {group_ids}::text[]"}
REFUSED: Final = """, opened as materialized (
    select open.id
    from (select distinct group_id from given where group_id is not null order by group_id) as named
    cross join lateral (
        select groups.id from {schema}.groups
        where groups.id = named.group_id and (groups.sealed_at is null or groups.id = (
            select jobs.group_id from {schema}.jobs where jobs.id = {member}::text
        ))
        for key share
    ) as open
), refused as materialized (
    select given.group_id from given
    where given.group_id is not null and given.group_id not in (select opened.id from opened)
        and not exists (select from {schema}.jobs where jobs.id = given.id)
)"""
JOINED: Final = """, joined as (
    insert into {schema}.group_joins (group_id, count)
    select group_id, count(*) from inserted where group_id is not null group by group_id
)"""
MEMBERS: Final = """, sums as materialized (
    select group_id, count(*) as count
    from (select ({group_ids}::text[])[width_bucket(no, {nos}::int8[])] as group_id from ended) as member
    group by group_id order by group_id
), held as materialized (
    select sums.group_id, sums.count
    from sums cross join lateral (
        select groups.id from {schema}.groups where groups.id = sums.group_id for no key update
    ) as known
), summed as (
    update {schema}.groups set succeeded = groups.succeeded + held.count
    from held where groups.id = held.group_id
    returning case
        when sealed_at is null or total > succeeded + failed + dead + cancelled then 0
        else {schema}.fail('LM002', 'group ' || id || ' may be over') end as checked
)"""
GRANT: Final = {
    "alone": """case when not pg_try_advisory_xact_lock({request_key}::int8)
        then {schema}.fail('40001', 'the same claim is under way') end as alone""",
    "with_kinds": """kinds as materialized (
    select kind, policy::int8[] as policy
    from unnest({kinds}::text[], {policies}::text[]) as kinds (kind, policy)
)""",
    "settled_terms": """case when coalesce(j.policy, p.policy, k.policy) is null then {written_defaults}::int8[]
        else nullif(array[
            coalesce(j.policy[1], p.policy[1], k.policy[1], d[1]),
            lease_us,
            coalesce(j.policy[3], p.policy[3], k.policy[3], {timeout_leases}::int8 * lease_us),
            coalesce(j.policy[4], p.policy[4], k.policy[4], d[4]),
            coalesce(j.policy[5], p.policy[5], k.policy[5], d[5]),
            coalesce(j.policy[6], p.policy[6], k.policy[6], d[6]),
            coalesce(j.policy[7], p.policy[7], k.policy[7], d[7])
        ], {unwritten}::int8[]) end as terms""",
    "settled_lease": """cross join lateral (
        select coalesce(j.policy[2], p.policy[2], k.policy[2], d[2]) as lease_us
    ) as term""",
    "grant": """granted as (
    insert into {schema}.leases (no, queue, lane, rank, seq, available_at, attempt, retries, expirations, fence, token,
        worker, request_id, leased_at, expires_at, terms{is_limited})
    select no, queue, lane, rank, nullif(seq, no), available_at, attempt, nullif(retries, 0), nullif(expirations, 0),
        fence, token, {worker}::text, {request_id}::text, now, expires_at, terms{is_own}
    from settled
), asked as (
    insert into {schema}.requests as r (id, forget_at, nos)
    select {request_id}::text, min(now) + 60000000, array_agg(no) from settled
    having count(*) > 0 and {request_id}::text is not null
    on conflict (id) do update set forget_at = excluded.forget_at, nos = case
        when exists (select from {schema}.requests as seen where seen.id = excluded.id)
        then (excluded.nos || r.nos)[:20000]
        else array[{schema}.fail('40001', 'the same claim was granted leases at the same time')::int8] end
)""",
    "has_expired": """not exists (select from settled) and exists (
            select from {schema}.leases
            where leases.expires_at >= least({expired_from}::int8, now) - 5000000 and leases.expires_at <= now
                and leases.expires_at < 9223372036854775807
        )""",
    "lease_row": """s.id, s.queue, s.kind, s.payload, s.lane, s.priority, s.run_at, s.delay_us, s.policy, s.headers,
    s.rules, s.token, s.attempt, s.fence, {worker}::text, {granted_at}, s.expires_at, s.terms, s.retries, s.expirations,
    s.created_at, s.available_at, s.seq, s.no""",
}
"""What every statement that grants leases does with the jobs it picked. I5: the terms are settled, from the policies of
the job (j), its queue (p) and its kind (k), and the defaults (d); NULL for those that are not written. The leases of
`settled` are written, and for C5 the request that asked for them. Where the same request is under way (`alone`), or has
committed since the snapshot of the statement was taken (`asked`), it fails: tried again, it waits for that one, and
returns its leases. `lease_row`: what is returned of each, in the order in which `verbs.claim.lease_of` reads it."""
GRANT_PLAIN: Final = {**GRANT, "is_limited": "", "is_own": ""}
GRANT_LIMITED: Final = {**GRANT, "is_limited": ", is_limited", "is_own": ", nullif(is_own, false)"}
"""T1: the leases of a queue with a limit of its own are its places."""
OWN_LIMITS: Final = {
    **GRANT_LIMITED,
    "granted_at": "come.now",
    **dict.fromkeys(("nobody_waits", "uses", "have_places", "held"), ""),
    "limited": "select count(*) from numbered where is_own",
}
NAMED_LIMITS: Final = {
    **GRANT_LIMITED,
    "granted_at": "come.now",
    "nobody_waits": """
        and not exists (select from {schema}.gates where gates.name = any ({names}::text[]))
        and not exists (select from {schema}.rates where rates.name = any ({names}::text[]))
        and not exists (
            select from {schema}.limits where limits.name = any ({names}::text[])
                and coalesce(limits.set_terms[2], limits.declared[2]) is not null
        )""",
    "uses": """, place as materialized (
    select places.ctid as at_ctid, places.name, places.key, places.no, exists (
        select from {schema}.leases where leases.no = places.no and leases.fence = places.fence offset 0
    ) as is_held
    from {schema}.places where places.name = any ({names}::text[]) and (select is_plain from gate)
), uses as materialized (
    select numbered.number, use ->> 0 as name, coalesce(use ->> 1, '') as key
    from numbered cross join lateral (select rules from {schema}.jobs where jobs.no = numbered.no offset 0) as job
    cross join lateral json_array_elements(job.rules::json -> 1) as use
    where job.rules is not null
)""",
    "have_places": """ and not exists (
        select from (
            select name, key, count(*) as count
            from (
                select name, key, true as is_wanted from uses
                union all
                select name, key, false from place where is_held
            ) as one
            group by name, key
            having bool_or(is_wanted)
        ) as used
        join known on known.name = used.name
        where used.count > known.places
    )""",
    "limited": "select count(*) from (select number from uses union select number from numbered where is_own) as one",
    "held": """, wanted as materialized (
    select uses.name, uses.key, settled.no, settled.fence from uses join settled on settled.number = uses.number
), again as materialized (
    select place.at_ctid, wanted.no, wanted.name, wanted.key, wanted.fence
    from place join wanted on wanted.no = place.no and wanted.name = place.name and wanted.key = place.key
), held_again as (
    update {schema}.places set fence = again.fence from again where places.ctid = again.at_ctid
), held as (
    insert into {schema}.places (name, key, no, fence)
    select wanted.name, wanted.key, wanted.no, wanted.fence from wanted
    where not exists (
        select from again where again.no = wanted.no and again.name = wanted.name and again.key = wanted.key
    )
), freed as (
    delete from {schema}.places where ctid = any (array(
        select at_ctid from place where not is_held and at_ctid not in (select again.at_ctid from again)
    ))
)""",
}
"""Of limits that jobs name: a row of `places` whose lease has gone is a place that was freed, and is deleted."""
HEADS: Final = {
    "next_in_lanes": """given as materialized (
    select lane.at_ctid as lane_ctid, first.*
    from unnest({lane_queues}::text[], {lanes}::text[]) as given (queue, lane)
    cross join lateral (
        select lanes.ctid as at_ctid from {schema}.lanes
        where lanes.queue = given.queue and lanes.lane = given.lane
        offset 0
    ) as lane
    left join lateral (
        select waiting.ctid as at_ctid, waiting.* from {schema}.waiting
        where waiting.queue = given.queue and waiting.lane = given.lane
        order by waiting.turn limit 1
    ) as first on true
), next as materialized (
    select * from given where no is not null
)""",
    "heads_replaced": """gone as (
    delete from {schema}.waiting where ctid = any (array(select at_ctid from next))
), headed as (
    update {schema}.lanes set head = next.no, head_seq = next.seq, is_blocked = false
    from next where lanes.ctid = next.lane_ctid
), idle as (
    delete from {schema}.lanes where ctid = any (array(select lane_ctid from given where no is null))
)""",
    "heads_ready": """made_ready as (
    insert into {schema}.ready (queue, rank, available_at, seq, no, attempt, retries, expirations)
    select queue, rank, available_at, seq, nullif(no, seq), nullif(attempt, 0), nullif(retries, 0),
        nullif(expirations, 0)
    from {unplaced}
), lowered as materialized (
    select {schema}.lower_watermarks(array_agg(queue), array_agg(rank::int8), array_agg(available_at))
    from {unplaced} having count(*) > 0
)""",
}
"""N4, N6: the next job of each lane becomes its head, and a lane without one is forgotten. A statement of the same
transaction has locked the lanes before, so that whoever lined up is seen. The heads that are `unplaced` take their
places in the ready table."""
FILTER: Final = {
    "fits": """({queue}::text is null or job.queue = {queue}::text)
    and ({kind}::text is null or job.kind = {kind}::text)
    and ({lane}::text is null or job.lane = {lane}::text)
    and ({group_id}::text is null or job.group_id = {group_id}::text)
    and ({unique_key}::text is null or job.rules::json #>> '{{0,0}}' = {unique_key}::text)
    and ({headers}::text is null or job.headers::jsonb @> {headers}::jsonb)""",
}
"""Whether a job is one that a filter takes, as far as its own row shows."""
CLAUSES: Final = {
    "candidates": ("candidates", FILTER),
    "candidates_kept": ("candidates_kept", FILTER),
    "candidates_kept_newest_first": ("candidates_kept_newest_first", FILTER),
    "candidates_newest_first": ("candidates_newest_first", FILTER),
    "candidates_of_group": ("candidates_of_group", FILTER),
    "claim": ("claim", {**GRANT_PLAIN, "granted_at": "come.now"}),
    "claim_limited": ("claim_limited", NAMED_LIMITS),
    "claim_limited_queues": ("claim_limited", OWN_LIMITS),
    "grant_chosen": ("grant_chosen", {**GRANT_LIMITED, "granted_at": "s.now"}),
    "hand_over": ("hand_over", {**GRANT_PLAIN, **HEADS, "granted_at": "s.now", "unplaced": "left_over"}),
    "advance": ("advance", {**HEADS, "unplaced": "next"}),
    "ack": ("ack", OF_NO_MEMBERS),
    "ack_all": ("ack", {**OF_NO_MEMBERS, "all_or_none": ALL_OR_NONE}),
    "ack_all_and_lock": ("ack", {**OF_NO_MEMBERS, "all_or_none": ALL_OR_NONE + AND_LOCK}),
    "ack_members": (
        "ack",
        {
            **OF_NO_MEMBERS,
            "members": MEMBERS,
            "members_counted": ", (select count(checked) from summed) as members_counted",
        },
    ),
    "enqueue": ("enqueue", {**OF_NO_GROUP, "if_known": IF_KNOWN}),
    "enqueue_new": ("enqueue", {**OF_NO_GROUP, "if_known": ""}),
    "enqueue_unique": (
        "enqueue_unique",
        {**INSERTED, "if_known": IF_KNOWN, "if_taken": "on conflict (queue, key) do nothing", "if_unknown": IF_UNKNOWN},
    ),
    "enqueue_unique_new": ("enqueue_unique", {**INSERTED, "if_known": "", "if_taken": "", "if_unknown": ""}),
    "enqueue_caused": ("enqueue", {**OF_GROUPS, "if_known": IF_KNOWN}),
    "enqueue_members": (
        "enqueue",
        {
            **OF_GROUPS,
            "if_known": IF_KNOWN,
            "refused": REFUSED,
            "if_not_refused": "where not exists (select from refused)",
            "joined": JOINED,
            "refused_groups": ", array(select distinct group_id from refused order by group_id) as refused_groups",
        },
    ),
}
"""Statements that share a file: its name, and the clauses in which they differ."""
_NUMBERED: Final = re.compile(r"\$([0-9]+)")
SCHEMA_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)


class Statement(NamedTuple):
    """What a server is sent, and the names of its parameters in their order."""

    text: bytes
    names: tuple[str, ...]

    def values(self, given: Mapping[str, Any]) -> list[Any]:
        return [given[name] for name in self.names]

    # For drivers that are not psycopg 3

    def plain(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters by name, as any driver takes them: arrays are lists."""
        return {name: plain_value(given[name]) for name in self.names}

    def dollar(self) -> str:
        """With `$1`, as asyncpg takes it."""
        return self.text.decode()

    def pyformat(self) -> str:
        """With `%(name)s`, as DB-API drivers take it."""
        return _pyformat(self)


@cache
def _pyformat(statement: Statement) -> str:
    text = statement.dollar().replace("%", "%%")
    return _NUMBERED.sub(lambda found: f"%({statement.names[int(found[1]) - 1]})s", text)


def check_schema(schema: str) -> None:
    if SCHEMA_NAME.fullmatch(schema) is None:
        raise Invalid(f"schema {schema!r} is not a name: use 1 to 63 of a-z 0-9 _ and begin with a letter or _")


def statement(text: str, schema: str, clauses: Mapping[str, str] | None = None) -> Statement:
    for name, clause in (clauses or {}).items():
        text = text.replace(f"{{{name}}}", clause)  # a clause may have parameters of its own
    known = {"schema": sql.Identifier(schema).as_string(None)}
    fields = dict.fromkeys(field for _, field, _, _ in Formatter().parse(text) if field is not None)
    names = tuple(field for field in fields if field not in known)
    numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
    return Statement(text.format_map({**known, **numbers}).encode(), names)


class Statements:
    """`statements["claim"]` is `claim.sql`, in this store's schema."""

    def __init__(self, schema: str) -> None:
        check_schema(schema)
        self.schema = schema
        self._read: dict[str, Statement] = {}

    def __getitem__(self, name: str) -> Statement:
        found = self._read.get(name)
        if found is None:
            file, clauses = CLAUSES.get(name, (name, {}))
            found = self._read[name] = statement(FILES[file].read_text(), self.schema, clauses)
        return found
