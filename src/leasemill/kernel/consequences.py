"""The consequences of the end of a job: the next of its chain, and the end of its group with its callbacks. Rules B2
and B6.

Called after the events of a decision were applied: every way to end a job or to add one leads here, and what it causes
is part of the same fact. `State.due` names the jobs and groups to look at; it is empty unless
one of the events just applied concerned a chain or a group.
"""

from __future__ import annotations

from msgspec.structs import replace

from leasemill.kernel.command import Decision, Do
from leasemill.kernel.events import AnyEvent, GroupEnded
from leasemill.kernel.model import ChainedJob, Job, JobGroup, JobSpec
from leasemill.kernel.state import SUCCEEDED, State
from leasemill.kernel.transitions.groups import chained_spec, end_id, finished, payload_after, rules_of_chained, then_id
from leasemill.kernel.verbs import enqueue


def follow(state: State, now: int, do: Do) -> None:
    while state.due:
        due, state.due = state.due, []
        for one in due:
            if isinstance(one, Job) and one.state is SUCCEEDED:
                do(_decide_chain(state, one, now))
        for one in due:
            group = one if isinstance(one, JobGroup) else _group_of(state, one)
            if group is not None and finished(group):
                _end(state, group, now, do)


def _group_of(state: State, job: Job) -> JobGroup | None:
    rules = job.spec.rules
    return None if rules is None or rules.group is None else state.groups.get(rules.group)


def _decide_chain(state: State, job: Job, now: int) -> Decision[None]:
    """B6: the next job carries the rest of the chain, and is a member of the same group."""
    rules = job.spec.rules
    if rules is None or not rules.chain:
        return (), None
    chained, *rest = rules.chain
    if chained.headers is None:
        chained = replace(chained, headers=job.spec.headers)
    spec = chained_spec(
        then_id(job.spec.id),
        chained,
        payload_after(chained, job.result),
        rules_of_chained(chained, rules.group, tuple(rest)),
    )
    return _enqueue(state, spec, now), None


def _end(state: State, group: JobGroup, now: int, do: Do) -> None:
    """B2: `end` once ever, `then` once, when all have succeeded; B3: also when there was none. U5: the second callback
    sees the key of the first."""
    has_succeeded = group.succeeded == group.total
    if group.on_end is not None and group.ended_at is None:
        do((_enqueue(state, _callback(group, end_id(group.id), group.on_end), now), None))
    if group.then is not None and has_succeeded:
        do((_enqueue(state, _callback(group, then_id(group.id), group.then), now), None))
    do(((GroupEnded(group.id, now, has_succeeded),), None))


def _callback(group: JobGroup, job_id: str, template: ChainedJob) -> JobSpec:
    return chained_spec(job_id, template, rules=rules_of_chained(template, group.parent, ()))


def _enqueue(state: State, spec: JobSpec, now: int) -> tuple[AnyEvent, ...]:
    """E5: a job that exists with this id is left unchanged."""
    return enqueue.decide(state, spec, now)[0]
