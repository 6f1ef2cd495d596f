"""Describes in sentences how a job relates to others: schedule, unique key, group, chain, callback, limits. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from shlex import quote

from leasemill.api.schedule_commands import tick_of
from leasemill.kernel.commands import GroupView
from leasemill.kernel.model import (
    QUEUE_LIMIT,
    UNSUCCESSFUL_STATES,
    ChainedJob,
    Job,
    JobState,
    LimitUse,
    UniqueKey,
    UniqueUntil,
)
from leasemill.kernel.transitions.groups import then_id
from leasemill.kernel.transitions.unique import holds
from leasemill.operator.facts import JobFacts, LimitFact, callback_name
from leasemill.operator.wording import counted, instant, listed, rate_of, span, times


def relations(facts: JobFacts) -> Iterator[str]:
    if (found := tick_of(facts.job.spec.id)) is not None:
        yield _of_schedule(*found, is_by_hand="." in facts.job.spec.id.rpartition("/")[2])
    rules = facts.job.spec.rules
    if rules is not None and rules.group is not None:
        yield _member(rules.group, facts.group)
    if rules is not None and rules.unique is not None:
        yield _key(facts, rules.unique)
    if facts.before is not None:
        yield f"It was enqueued by the success of {facts.before.spec.id!r}, the job before it in its chain."
    if rules is not None and rules.chain:
        yield _chain(facts.job, rules.chain)
    if facts.callback_of is not None:
        yield _callback(facts.job.spec.id, facts.callback_of)


def _key(facts: JobFacts, unique: UniqueKey) -> str:
    """U1 to U4: whether it holds its unique key, or which job does."""
    job, view = facts.job, facts.key
    count = f" Its arguments were replaced {times(job.replaced)}." if job.replaced else ""
    if view is None:
        return f"No job holds its unique key {unique.key!r}.{count}"
    if view.job_id != job.spec.id:
        redrive = " It cannot be redriven while that is so." if _cannot_come_back(job, unique) else ""
        return f"It is a twin of {view.job_id!r}, which holds its unique key {unique.key!r}.{redrive}{count}"
    ends = [] if not holds(job) else [f"it has {'ended' if unique.until is UniqueUntil.ENDED else 'been claimed'}"]
    if view.kept_until is not None:
        ends.append(f"{instant(view.kept_until)} ({span(view.kept_until - facts.now)} from now)")
    return f"It holds unique key {unique.key!r} until {' and '.join(ends)}: calls with that key make no job.{count}"


def _cannot_come_back(job: Job, unique: UniqueKey) -> bool:
    return job.state in UNSUCCESSFUL_STATES and unique.until is UniqueUntil.ENDED


def _of_schedule(name: str, tick: datetime, *, is_by_hand: bool) -> str:
    how = "was fired by hand at" if is_by_hand else "made it for its tick"
    return f"Schedule {name!r} {how} {tick.isoformat().replace('+00:00', 'Z')}."


def _member(group_id: str, group: GroupView | None) -> str:
    if group is None:
        return f"It is a member of group {group_id!r}, which is no longer recorded."
    return f"It is a member of group {group_id!r}: {progress(group)}."


def _chain(job: Job, chain: Sequence[ChainedJob]) -> str:
    following = listed([one.kind for one in chain])
    if job.state is JobState.SUCCEEDED:
        return f"In its chain it is followed by {following}; its success enqueued {then_id(job.spec.id)!r}."
    if job.state in UNSUCCESSFUL_STATES:
        return f"In its chain it is followed by {following}: the chain has stopped here, and a redrive continues it."
    return f"In its chain it is followed by {following}: its success enqueues the next."


def _callback(job_id: str, group: GroupView) -> str:
    name = callback_name(job_id, group)
    had = "have succeeded" if name == "then" else "had ended"
    return f"It is the `{name}` of group {group.id!r}: all its {counted(group.total, 'member')} {had}."


def progress(group: GroupView) -> str:
    """Return the progress of a group, without its name."""
    ended = [
        f"{count:,} {state}"
        for state, count in (
            ("succeeded", group.succeeded),
            ("failed", group.failed),
            ("dead", group.dead),
            ("cancelled", group.cancelled),
        )
        if count
    ]
    counts = f"{counted(group.total, 'member')}, {', '.join([*ended, f'{group.unfinished:,} unfinished'])}"
    return counts if group.sealed_at is not None else f"{counts}; it is not sealed"


# Limits ---------------------------------------------------------------------------------------------------------


def shutting(facts: Sequence[LimitFact]) -> tuple[list[str], list[str]]:
    """Return why limits keep a job that is due, and what an operator can do; empty lists if they let it through."""
    full = [fact for fact in facts if fact.is_full]
    waiting = [fact for fact in facts if fact.opens_at is not None]
    sentences = [_limit_is_full(fact) for fact in full] + [_rate_is_used(fact) for fact in waiting]
    names = dict.fromkeys(fact.view.name for fact in (*full, *waiting))
    return sentences, [f"leasemill limits show {quote(name)}" for name in names]


def _limit_is_full(fact: LimitFact) -> str:
    places = counted(fact.view.terms.places or 0, "place")
    if fact.view.name.startswith(QUEUE_LIMIT):
        queue = fact.view.name.removeprefix(QUEUE_LIMIT)
        return f"It waits for a place in queue {queue!r}, whose limit is {places}: {fact.held:,} are held."
    by = ""
    if fact.holders:
        more = fact.held - len(fact.holders[:5])
        by = f" by {listed(fact.holders[:5])}" + (f" and {more:,} more" if more > 0 else "")
    return f"It waits for a place under {_named_limit(fact.use)}: {fact.held:,} of {places} held{by}."


def _rate_is_used(fact: LimitFact) -> str:
    rate, opens_at = rate_of(fact.view.terms), instant(fact.opens_at)
    if rate:
        return f"The rate of {_named_limit(fact.use)} ({rate}) allows it to start at {opens_at}."
    return f"A handler has paused {_named_limit(fact.use)} until {opens_at}."


def _named_limit(use: LimitUse) -> str:
    return f"limit {use.name!r}" if use.key is None else f"limit {use.name!r} for {use.key!r}"
