"""The verbs on their straight path: one statement each, guarded in SQL, for as many items as there are.

Each function answers what it could and names the items it could not: reports that are refused or repeated, ends that
are final, offsets that come again. Those are decided by the kernel, under locks (`decided.py`). What must never happen
here: a rule that the kernel does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from psycopg.errors import UniqueViolation

from leasemill.errors import QueueRefused
from leasemill.kernel import commands as c
from leasemill.kernel.decide import followup_id, offset_id
from leasemill.kernel.model import JobSpec, JobState, QueueMode
from leasemill.kernel.retry import DEFAULTS, LONGEST_EXPONENT, NO_POLICY, TIMEOUT_LEASES
from leasemill.store.postgres.rows import ABBREVIATED, Row, lease_of, policy_of, policy_text, terms_numbers, terms_of
from leasemill.store.postgres.site import Site, Steps, advisory_key
from leasemill.store.postgres.wire.arrays import encoded, int8, int8s, texts
from leasemill.store.postgres.wire.connections import LOGGER, Connection, Moved

ADMITTED_AT_ONCE: Final = 2_000
NULL_TERMS: Final = int8s(terms_numbers(ABBREVIATED))
"""For statements that read terms, or write them."""
DEFAULT_TERMS: Final = int8s(terms_numbers(DEFAULTS))
"""I5: for statements that settle terms."""
ReportT = TypeVar("ReportT", c.StartReport, c.LeaseRef, c.AckReport, c.NackReport, c.ReleaseReport)
OutcomeT = TypeVar("OutcomeT")


# Enqueue -------------------------------------------------------------------------------------------------------


def enqueue(
    site: Site, connection: Connection, command: c.Enqueue, *, channel: str | None, is_repeat: bool
) -> list[c.EnqueueOutcome]:
    """On a connection of the store's own: durable, and admitted to their lanes, when it returns."""
    if not command.jobs:
        return []
    if command.are_new and not is_repeat:
        try:
            return _enqueue(site, connection, command, channel, are_new=True)
        except UniqueViolation:
            LOGGER.warning("an id that was drawn for a new job is known: enqueueing as if it came again")
    return _enqueue(site, connection, command, channel, are_new=False)


def _enqueue(
    site: Site, connection: Connection, command: c.Enqueue, channel: str | None, *, are_new: bool
) -> list[c.EnqueueOutcome]:
    has_lanes = any(job.lane is not None for job in command.jobs)
    if not has_lanes and site.claim_queues.issuperset(job.queue for job in command.jobs):
        return insert(site, connection, command.jobs, channel, are_new=are_new)
    with connection.transaction():
        names = check_enqueue_queues(site, connection, command.jobs)
        outcomes = insert(site, connection, command.jobs, channel, are_new=are_new)
        use_queues(site, connection, names, command.jobs, outcomes)
        if has_lanes:
            admit(site, connection)
    site.claim_queues.update(
        job.queue for job, outcome in zip(command.jobs, outcomes, strict=True) if isinstance(outcome, c.Enqueued)
    )
    return outcomes


def check_enqueue_queues(site: Site, connection: Connection, jobs: Sequence[JobSpec]) -> set[str]:
    """I7: refuses jobs for a queue that is used with acquire; answers with the queues not known to be used so far."""
    names = {job.queue for job in jobs} - site.claim_queues
    for name, mode in modes(site, connection, names).items():
        if mode == QueueMode.ACQUIRE:
            raise QueueRefused(f"queue {name!r} is used with acquire; enqueue into another queue")
    return names


def modes(site: Site, connection: Connection, names: set[str]) -> dict[str, str | None]:
    if not names:
        return {}
    return dict(site.all(connection, "queues_known", {"names": texts(sorted(names))}))


def use_queues(
    site: Site, connection: Connection, names: set[str], jobs: Sequence[JobSpec], outcomes: Sequence[object]
) -> None:
    """Fix how the queues of new jobs are used."""
    used = names & {job.queue for job, outcome in zip(jobs, outcomes, strict=True) if isinstance(outcome, c.Enqueued)}
    if not used:
        return
    fix_queues(site, connection, used)


def fix_queues(site: Site, connection: Connection, names: set[str]) -> None:
    """I7: these queues are used with enqueue and claim from now on."""
    given = {"names": texts(sorted(names)), "mode": QueueMode.CLAIM.value}
    for name, mode in site.all(connection, "queues_use", given):
        if mode != QueueMode.CLAIM:
            raise QueueRefused(f"queue {name!r} is used with acquire; enqueue into another queue")


def insert(
    site: Site, connection: Connection, jobs: Sequence[JobSpec], channel: str | None, *, are_new: bool = False
) -> list[c.EnqueueOutcome]:
    """The insert alone, on a connection of the store's own and in whatever transaction it is in."""
    return site.follow(connection, inserting(jobs, channel, are_new=are_new))


def inserting(jobs: Sequence[JobSpec], channel: str | None, *, are_new: bool = False) -> Steps[list[c.EnqueueOutcome]]:
    """The insert, statement by statement, for any kind of connection. `are_new`: a known id fails, and all with it."""
    first: dict[str, JobSpec] = {}
    for job in jobs:
        first.setdefault(job.id, job)
    ((count, ids, _),) = yield "enqueue_new" if are_new else "enqueue", _columns(list(first.values()), channel)
    if count == len(jobs):
        return [c.Enqueued(job.id) for job in jobs]
    inserted = set(first) if count == len(first) else set(ids or ())
    unknown = [job_id for job_id in first if job_id not in inserted]
    rows = (yield "specs", {"ids": texts(unknown)}) if unknown else []
    known = {row[0]: spec_of(row) for row in rows}
    outcomes: list[c.EnqueueOutcome] = []
    for job in jobs:
        if job.id in inserted:
            inserted.remove(job.id)  # E6: the first of that id; the next one sees it
            known[job.id] = job
            outcomes.append(c.Enqueued(job.id))
        elif job.id not in known:
            raise Moved(f"job {job.id!r} was forgotten as it was enqueued again")
        else:
            outcomes.append(c.Duplicate(job.id) if known[job.id] == job else c.Conflict(job.id))
    return outcomes


def _columns(jobs: list[JobSpec], channel: str | None) -> dict[str, Any]:
    return {
        "ids": texts([job.id for job in jobs]),
        "queues": texts([job.queue for job in jobs]),
        "kinds": texts([job.kind for job in jobs]),
        "payloads": encoded([job.payload for job in jobs]),
        "lanes": texts([job.lane for job in jobs]),
        "priorities": int8s([job.priority for job in jobs]),
        "run_ats": int8s([job.run_at for job in jobs]),
        "delays": int8s([job.delay_us or None for job in jobs]),
        "policies": texts([policy_text(job.policy) for job in jobs]),
        "channel": channel,
    }


def spec_of(row: Row) -> JobSpec:
    """A row of specs.sql, or one that begins like it."""
    return JobSpec(
        row[0], row[1], row[2], row[3].encode(), row[4], row[5], row[6], row[7] or 0, policy_of(row[8]), row[9]
    )


def admit(site: Site, connection: Connection, *, waits: bool = False) -> bool:
    """Arrived jobs take their places in their lanes, in the transaction that is open. Lanes go by arrival.

    Without `waits` those of a lane that somebody has locked are left to the next admission. False: another admission
    is under way.
    """
    given = {"admission_key": int8(site.admission_key), "limit": int8(ADMITTED_AT_ONCE)}
    is_open, count = site.one(connection, "arrive", given)
    if is_open and count:
        site.positions.lower(site.all(connection, "admit_all" if waits else "admit", given))
    return bool(is_open)


def lock_admission(site: Site, connection: Connection) -> None:
    """Wait until no other admission is under way; none begins before the transaction that is open ends."""
    connection.execute("select pg_advisory_xact_lock(%s)", [int8(site.admission_key)])


# Claim ---------------------------------------------------------------------------------------------------------


def check_claim_queues(site: Site, connection: Connection, queues: Sequence[str]) -> None:
    """N8: refuses claims from a queue that is used with acquire."""
    for name, mode in modes(site, connection, set(queues) - site.claim_queues).items():
        if mode == QueueMode.ACQUIRE:
            raise QueueRefused(f"queue {name!r} is claimed by acquire only; claim from another queue")
        if mode == QueueMode.CLAIM:
            site.claim_queues.add(name)


def _settling() -> dict[str, Any]:
    """I5: what a statement needs to settle terms as the kernel does."""
    return {"defaults": DEFAULT_TERMS, "null_terms": NULL_TERMS, "timeout_leases": int8(TIMEOUT_LEASES)}


class Claimed(NamedTuple):
    leases: list[c.Lease]
    has_arrived: bool = False
    """There are arrivals to admit, found on the way."""


def claim(site: Site, connection: Connection, command: c.Claim, *, is_repeat: bool) -> Claimed:
    """`is_repeat`: the same request may still be at work on a connection that was lost; wait for its end."""
    kinds = {kind: policy for kind, policy in command.kinds.items() if policy != NO_POLICY}
    given: dict[str, Any] = {
        "request_id": command.request_id,
        "request_key": int8(None if command.request_id is None else advisory_key(command.request_id)),
        "worker": command.worker,
        "limit": int8(command.limit),
        **_settling(),
        "tokens": texts(command.tokens),
        "kinds": texts(list(kinds)),
        "policies": texts([policy_text(policy) for policy in kinds.values()]),
    }
    if is_repeat and command.request_id is not None:
        with connection.transaction():
            connection.execute("select pg_advisory_xact_lock(%s)", [given["request_key"]])
            return _claimed(site, connection, command, given)
    return _claimed(site, connection, command, given)


def _claimed(site: Site, connection: Connection, command: c.Claim, given: dict[str, Any]) -> Claimed:
    queues = list(dict.fromkeys(command.queues))
    places, is_start = site.positions.places(queues)
    rows = site.all(connection, "claim", {**given, **places})
    if not rows and not is_start:
        site.positions.forget()
        places, _ = site.positions.places(queues)
        rows = site.all(connection, "claim", {**given, **places})
    if not rows:
        site.positions.forget()
        return Claimed([])
    site.remember((row[9], row[0], row[21]) for row in rows)
    leases = [lease_of(row) for row in rows]
    *_, has_arrived = rows[0]
    if has_arrived is None:  # a repeat: it says nothing of where the first claimable jobs are, and has not looked
        return Claimed(leases)
    if len(rows) == command.limit:
        site.positions.advance((row[1], 9 - row[5], row[19], row[20] or row[21]) for row in rows)
    else:
        site.positions.forget()
    return Claimed(leases, has_arrived)


def acquire(site: Site, connection: Connection, request: c.AcquireRequest) -> c.Acquired | c.Backlogged | None:
    """None: the lane is new, the offset is known, or its turn is not now."""
    given = {
        "id": offset_id(request.queue, request.lane, request.offset),
        "queue": request.queue,
        "lane": request.lane,
        "offset": int8(request.offset),
        "kind": request.kind,
        "payload": request.payload.decode(),
        "policy": policy_text(request.policy),
        "token": request.token,
        "worker": request.worker,
        **_settling(),
    }
    rows = site.all(connection, "acquire", given)
    if not rows:
        return None
    (row,) = rows
    spec = spec_of(row)
    created_at, no, fence, leased_at, expires_at, terms = row[10:]
    if fence is None:
        return c.Backlogged(spec.id)
    site.remember([(request.token, spec.id, no)])
    return c.Acquired(
        c.Lease(
            spec,
            request.token,
            1,
            fence,
            request.worker,
            leased_at,
            expires_at,
            terms_of(terms),
            retries=0,
            expirations=0,
            created_at=created_at,
        )
    )


# Reports -------------------------------------------------------------------------------------------------------


def start(site: Site, connection: Connection, reports: Sequence[c.StartReport]) -> dict[str, c.StartOutcome]:
    found = numbered(site, connection, reports)
    given = {**_references(found), "ages": int8s([report.age_us for report in found.values()])}
    return {report.job_id: c.Started(report.job_id) for report in _ended(site.one(connection, "start", given), found)}


def extend(site: Site, connection: Connection, leases: Sequence[c.LeaseRef]) -> dict[str, c.ExtendOutcome]:
    found = numbered(site, connection, leases)
    rows = site.all(connection, "extend", {**_references(found), "null_terms": NULL_TERMS})
    return {(job_id := found[no].job_id): c.Extended(job_id, until) for no, until in rows}


def ack(site: Site, connection: Connection, reports: Sequence[c.AckReport]) -> dict[str, c.AckOutcome]:
    found = numbered(site, connection, reports)
    ended = _ended(site.one(connection, "ack", _results(found)), found)
    return {report.job_id: c.Acked(report.job_id) for report in ended}


def ack_in_lane(site: Site, connection: Connection, reports: Sequence[c.AckReport]) -> dict[str, c.AckOutcome]:
    found = numbered(site, connection, reports)
    with connection.transaction() as transaction:
        ended = site.all(connection, "ack_in_lane", _results(found))
        if len(ended) < len(reports):
            transaction.force_rollback = True  # E6: a repeat among them tells who was next before the others ended
            return {}
        heads = advance(site, connection, [(queue, lane) for _, queue, lane, _ in ended])
    return {(job_id := found[no].job_id): c.Acked(job_id, heads.get((queue, lane))) for no, queue, lane, _ in ended}


def ack_offset(
    site: Site, connection: Connection, report: c.AckReport, queue: str, lane: str
) -> dict[str, c.AckOutcome]:
    (no,) = numbered(site, connection, [report]) or [None]
    if no is None:
        return {}
    given = {
        "no": int8(no),
        "token": report.token,
        "queue": queue,
        "lane": lane,
        "result": None if report.result is None else report.result.decode(),
    }
    with connection.transaction():
        site.all(connection, "lock_lanes", {"queues": texts([queue]), "lanes": texts([lane])})
        rows = site.all(connection, "ack_offset", given)
    if not rows:
        return {}
    ((next_id, next_offset, _),) = rows
    hint = None if next_id is None else c.LaneHint(next_id, next_offset)
    return {report.job_id: c.Acked(report.job_id, hint)}


def advance(site: Site, connection: Connection, lanes: Sequence[tuple[str, str]]) -> dict[tuple[str, str], c.LaneHint]:
    """N4: the next of each lane becomes head, in the transaction that has locked the lanes."""
    given = {"queues": texts([queue for queue, _ in lanes]), "lanes": texts([lane for _, lane in lanes])}
    heads = site.all(connection, "advance", given)
    site.positions.lower((queue, rank, at, seq) for queue, _, _, rank, at, seq in heads)
    return {(queue, lane): c.LaneHint(job_id, None) for queue, lane, job_id, *_ in heads}


def nack(site: Site, connection: Connection, reports: Sequence[c.NackReport]) -> dict[str, c.NackOutcome]:
    straight = [report for report in reports if not (report.is_permanent or report.keep_lease)]
    if not straight:
        return {}
    found = numbered(site, connection, straight)
    given = {
        **_references(found),
        "errors": texts([report.error for report in found.values()]),
        "jitters": texts([repr(report.jitter) for report in found.values()]),
        "delays": int8s([report.delay_us for report in found.values()]),
        "longest_exponent": int8(LONGEST_EXPONENT),
        "null_terms": NULL_TERMS,
    }
    rows = site.all(connection, "nack", given)
    site.positions.lower((queue, rank, at, seq) for _, _, at, queue, rank, seq in rows)
    return {(job_id := found[no].job_id): c.Nacked(job_id, JobState.READY, retries, at) for no, retries, at, *_ in rows}


def release(site: Site, connection: Connection, reports: Sequence[c.ReleaseReport]) -> dict[str, c.ReleaseOutcome]:
    found = numbered(site, connection, reports)
    given = {
        **_references(found),
        "delays": int8s([report.delay_us for report in found.values()]),
        "errors": texts([report.error for report in found.values()]),
    }
    rows = site.all(connection, "release", given)
    site.positions.lower((queue, rank, at, seq) for _, queue, rank, at, seq in rows)
    return {(job_id := found[no].job_id): c.Released(job_id, JobState.READY) for no, *_ in rows}


def commit(site: Site, connection: Connection, command: c.Commit, *, channel: str | None) -> c.CommitOutcome | None:
    """None: not held, or committed before.

    Follow-ups in lanes are admitted in a transaction after this one: lanes are locked before leases, never after.
    """
    followups = followup_specs(command)
    if not followups:
        return c.Committed(command.job_id, ()) if mark_committed(site, connection, command) else None
    with connection.transaction() as transaction:
        if not mark_committed(site, connection, command):
            return None
        names = check_enqueue_queues(site, connection, followups)
        outcomes = insert(site, connection, followups, channel)
        conflict = next((outcome for outcome in outcomes if isinstance(outcome, c.Conflict)), None)
        if conflict is not None:
            transaction.force_rollback = True  # X6: one conflict refuses the whole commit
            return conflict
        use_queues(site, connection, names, followups, outcomes)
    return c.Committed(command.job_id, tuple(spec.id for spec in followups))


def mark_committed(site: Site, connection: Connection, command: c.Commit) -> bool:
    result = None if command.result is None else command.result.decode()
    given = {"id": command.job_id, "token": command.token, "result": result}
    return bool(site.all(connection, "commit", given))


def followup_specs(command: c.Commit) -> list[JobSpec]:
    return [
        JobSpec(
            followup_id(command.job_id, index),
            one.queue,
            one.kind,
            one.payload,
            one.lane,
            one.priority,
            one.run_at,
            one.delay_us,
            one.policy,
        )
        for index, one in enumerate(command.followups)
    ]


def numbered(site: Site, connection: Connection, reports: Sequence[ReportT]) -> dict[int, ReportT]:
    """The reports by their jobs' numbers, ascending: remembered since the claim, else asked for; without unknown jobs.

    Statements find what belongs to a row by its number's place, `width_bucket(no, nos)`, which needs them in order.
    """
    known = site.numbers
    unknown = [report.job_id for report in reports if report.token not in known]
    asked: dict[str, int] = {}
    if unknown:
        asked = {job_id: no for no, job_id, *_ in site.all(connection, "members", {"ids": texts(unknown)})}
    found: dict[int, ReportT] = {}
    for report in reports:
        remembered = known.get(report.token)
        no = remembered[1] if remembered is not None and remembered[0] == report.job_id else asked.get(report.job_id)
        if no is not None:
            found[no] = report
    return {no: found[no] for no in sorted(found)}


def _references(found: Mapping[int, Any]) -> dict[str, Any]:
    return {"nos": int8s(list(found)), "tokens": texts([report.token for report in found.values()])}


def _results(found: Mapping[int, c.AckReport]) -> dict[str, Any]:
    results = [report.result for report in found.values()]
    return {
        **_references(found),
        "results": encoded(results) if any(result is not None for result in results) else None,
    }


def _ended(row: Row, found: Mapping[int, ReportT]) -> Iterable[ReportT]:
    """The reports a statement answered for: all of them, or those it names."""
    count, nos, *_ = row
    return found.values() if count == len(found) else [found[no] for no in nos or ()]


Straight = Callable[[Site, Connection, Sequence[Any]], Mapping[str, Any]]


def lock_retention(site: Site, connection: Connection, *, waits: bool = True) -> bool:
    """Who forgets jobs that succeeded is alone with it, so that none is counted twice. False: another is at it."""
    if waits:
        connection.execute("select pg_advisory_xact_lock(%s)", [int8(site.retention_key)])
        return True
    row = connection.execute("select pg_try_advisory_xact_lock(%s)", [int8(site.retention_key)]).fetchone()
    return row is not None and bool(row[0])


def trim(site: Site, connection: Connection, ids: list[str], attempts: Mapping[str, int]) -> None:
    """I8: executions beyond those that are kept go."""
    numbers = {job_id: no for no, job_id, *_ in site.all(connection, "members", {"ids": texts(ids)})}
    given = {"nos": int8s(list(numbers.values())), "attempts": int8s([attempts[job_id] for job_id in numbers])}
    site.do(connection, "trim", given)
