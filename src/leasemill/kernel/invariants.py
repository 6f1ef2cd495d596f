"""The contract's invariants, checked over a whole state. For tests: it reads everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from leasemill.kernel.limit_invariants import violations_of_limits
from leasemill.kernel.model import (
    ENDED_STATES,
    LIVE,
    NEVER,
    UNSUCCESSFUL_STATES,
    ExecutionStatus,
    Job,
    JobState,
    QueueMode,
    derived_state,
)
from leasemill.kernel.schedule import OPEN_KEPT, SKIPS_KEPT
from leasemill.kernel.state import KEYS_FORMAT, PLAIN_FORMAT, Lane, LaneKey, State
from leasemill.kernel.transitions.formats import VERB_FORMATS
from leasemill.kernel.transitions.groups import outcome_of
from leasemill.kernel.transitions.unique import follows, kept_until, taker_of, unique_of


def violations(state: State) -> list[str]:
    """Every broken invariant, as a sentence; none for a sound state."""
    return [
        *_of_jobs(state),
        *_of_uses(state),
        *_of_fences(state),
        *_of_lanes(state),
        *_of_counts(state),
        *_of_orders(state),
        *_of_groups(state),
        *_of_keys(state),
        *_of_key_format(state),
        *violations_of_limits(state),
        *_of_schedules(state),
        *_of_formats(state),
    ]


def _of_jobs(state: State) -> Iterator[str]:
    for job_id, job in state.jobs.items():
        live = [execution for execution in job.executions if execution.status in LIVE]
        committed = [execution for execution in job.executions if execution.committed_at is not None]
        attempts = [execution.attempt for execution in job.executions]
        if job.spec.id != job_id or state.listing.get(job.seq) is not job:
            yield f"job {job_id} is not found by its id and seq"
        if job.state is not derived_state(job):
            yield f"job {job_id} is {job.state}, its executions imply {derived_state(job)}"
        if len(live) > 1 or (live and live[-1] is not job.executions[-1]):
            yield f"job {job_id} has {len(live)} live leases"
        if (job.state is JobState.LEASED) != bool(live):
            yield f"job {job_id} is {job.state} with {len(live)} live leases"
        if len(committed) > 1:
            yield f"job {job_id} was committed {len(committed)} times"
        if committed and committed[0].status not in (ExecutionStatus.COMMITTED, ExecutionStatus.DONE):
            yield f"job {job_id} was committed and then {committed[0].status}"
        if attempts != sorted(set(attempts)) or (attempts and attempts[-1] != job.attempt):
            yield f"job {job_id} has attempts {attempts}, counted {job.attempt}"
        if len({execution.token for execution in job.executions}) != len(job.executions):
            yield f"job {job_id} was granted twice under one token"
        if job.executions and job.retries > max(execution.terms.max_retries for execution in job.executions):
            yield f"job {job_id} was retried {job.retries} times"
        reports = [(refusal.token, refusal.verb) for refusal in job.refusals]
        if len(reports) != len(set(reports)):
            yield f"job {job_id} has a refusal recorded twice"


def _of_uses(state: State) -> Iterator[str]:
    """I7: a job of the other use could never be claimed nor acquired."""
    for job_id, job in state.jobs.items():
        mode = state.queues[job.spec.queue].mode
        if mode is not (QueueMode.CLAIM if job.spec.offset is None else QueueMode.ACQUIRE):
            came_by = "enqueue" if job.spec.offset is None else "acquire"
            yield f"job {job_id} came by {came_by} into queue {job.spec.queue}, which is used with {mode}"


def _of_fences(state: State) -> Iterator[str]:
    fences = [execution.fence for job in state.jobs.values() for execution in job.executions]
    if len(fences) != len(set(fences)):
        yield "two executions share a fence"
    if fences and max(fences) > state.fence:
        yield f"a fence is above the counter {state.fence}"
    for job in state.jobs.values():
        own = [execution.fence for execution in job.executions]
        if own != sorted(own):
            yield f"job {job.spec.id} has fences that do not rise: {own}"


def _of_lanes(state: State) -> Iterator[str]:
    members: dict[LaneKey, list[Job]] = {}
    for job in state.listing.after(0):
        if job.spec.lane is not None and (job.state in (JobState.READY, JobState.LEASED) or job.blocks_lane):
            members.setdefault((job.spec.queue, job.spec.lane), []).append(job)
    for key, jobs in members.items():
        lane = state.lanes.get(key)
        if lane is None or lane.head is not jobs[0]:
            yield f"lane {key} does not have its first job as head"
            continue
        if lane.waiting_count != len(jobs) - 1:
            yield f"lane {key} counts {lane.waiting_count} waiting, there are {len(jobs) - 1}"
        if any(job.state is JobState.LEASED for job in jobs[1:]):
            yield f"lane {key} has a leased job behind its head"
    for key, lane in state.lanes.items():
        if key not in members and (lane.head is not None or not (lane.finished or lane.failed)):
            yield f"lane {key} is idle and still there"
        yield from _of_offsets(key, lane, members.get(key, []))


def _of_offsets(key: LaneKey, lane: Lane, members: list[Job]) -> Iterator[str]:
    finished, failed = lane.finished or (), lane.failed or ()
    for job in members:
        offset = job.spec.offset
        if offset is not None and (offset in finished or (offset in failed and not job.blocks_lane)):
            yield f"lane {key} has offset {offset} both ended and waiting"
    for ranges in (finished, failed):
        pairs = list(ranges)
        if any(first > last for first, last in pairs) or any(
            earlier[1] + 1 >= later[0] for earlier, later in pairwise(pairs)
        ):
            yield f"lane {key} has ranges that are not apart: {pairs}"


def _of_counts(state: State) -> Iterator[str]:
    counted = Counter((job.spec.queue, job.state) for job in state.jobs.values())
    for name, queue in state.queues.items():
        for job_state, count in queue.counts.items():
            if counted[name, job_state] != count:
                yield f"queue {name} counts {count} {job_state}, there are {counted[name, job_state]}"


def _of_groups(state: State) -> Iterator[str]:
    """B1 to B4. Members may be forgotten, so a count is at least what is there."""
    members = Counter(
        (job.spec.rules.group, job.state)
        for job in state.jobs.values()
        if job.spec.rules is not None and job.spec.rules.group is not None
    )
    parts = Counter(group.parent for group in state.groups.values() if group.parent is not None)
    outcomes = Counter(
        (group.parent, outcome_of(group))
        for group in state.groups.values()
        if group.parent is not None and group.is_over
    )
    for named in {group_id for group_id, _ in members} | set(parts):
        if named not in state.groups:
            yield f"group {named} has members and is not there"
    for group_id, group in state.groups.items():
        there = sum(members[group_id, job_state] for job_state in JobState) + parts[group_id]
        if group.remembered != there:
            yield f"group {group_id} remembers {group.remembered} members, there are {there}"
        unfinished = members[group_id, JobState.READY] + members[group_id, JobState.LEASED]
        unfinished += parts[group_id] - sum(outcomes[group_id, outcome] for outcome in ENDED_STATES)
        if group.unfinished != unfinished:
            yield f"group {group_id} counts {group.unfinished} unfinished, there are {unfinished}"
        counts = {
            JobState.SUCCEEDED: group.succeeded,
            JobState.FAILED: group.failed,
            JobState.DEAD: group.dead,
            JobState.CANCELLED: group.cancelled,
        }
        for outcome, counted in counts.items():
            if counted < members[group_id, outcome] + outcomes[group_id, outcome]:
                yield f"group {group_id} counts {counted} {outcome}, there are more"
        if group.is_over != (group.sealed_at is not None and not group.unfinished):
            yield f"group {group_id} has {group.unfinished} unfinished and is_over is {group.is_over}"
        if (group.succeeded_at is not None) != (group.is_over and group.succeeded == group.total):
            yield f"group {group_id} succeeded at {group.succeeded_at} with {group.succeeded} of {group.total}"
        if group.is_over and group.ended_at is None:
            yield f"group {group_id} is over and never ended"
    over = {group.id for group in state.groups.values() if group.is_over and not group.remembered}
    if {group.id for group in state.over.first(len(state.groups) + 1, NEVER)} != over or len(state.over) != len(over):
        yield "the groups that retention may forget are not those that are over"
    if state.due:
        yield "something is left to follow"


def _of_keys(state: State) -> Iterator[str]:
    """U1, U6: a key is held by one job, which is found by it, and is forgotten with its job or its time."""
    for job_id, job in state.jobs.items():
        unique = unique_of(job.spec)
        if unique is None or not follows(job):
            continue
        taken = state.keys.get(job.spec.queue, unique.key)
        if taken is None or taken.job_id != job_id:
            yield f"job {job_id} should hold key {unique.key}, it is {taken and taken.job_id}'s"
    kept = set(state.kept_keys)
    for key, taken in state.keys.items():
        owner = taker_of(state, key, taken)
        if owner is None and (taken.until, taken.queue, key) not in kept:
            yield f"key {key} is kept for job {taken.job_id}, which is gone, without an end"
        if owner is not None and taken.until != kept_until(owner):
            yield f"key {key} is not what job {taken.job_id} took"


def _of_key_format(state: State) -> Iterator[str]:
    """W16: that two queues' jobs hold the same key is nothing that a reader of an earlier format knows."""
    if state.format >= KEYS_FORMAT:
        return
    queues: dict[str, str] = {}
    for job in state.jobs.values():
        unique = unique_of(job.spec)
        if unique is not None and follows(job) and queues.setdefault(unique.key, job.spec.queue) != job.spec.queue:
            yield f"key {unique.key} is held in two queues, and the format, {state.format}, does not say so"


def _of_orders(state: State) -> Iterator[str]:
    for name, queue in state.queues.items():
        for priority, order in enumerate(queue.ready):
            due = [] if order is None else order.first(len(state.jobs) + 1, NEVER)
            expected = sorted(
                (job for job in state.jobs.values() if _awaits_claim(state, job, name, priority)),
                key=lambda job: (job.available_at, job.seq),
            )
            if [job.spec.id for job in due] != [job.spec.id for job in expected]:
                yield f"queue {name} priority {priority} would be claimed in another order than the contract's"
            if order is not None and len(order) != len(expected):
                yield f"queue {name} priority {priority} counts {len(order)} claimable, there are {len(expected)}"
    timed = [
        job.executions[-1]
        for job in state.jobs.values()
        if job.state is JobState.LEASED and job.executions and job.executions[-1].expires_at != NEVER
    ]
    held = state.leases.first(len(state.jobs) + 1, NEVER)
    if {execution.fence for execution in held} != {execution.fence for execution in timed}:
        yield "the leases found by time are not the live timed ones"
    requested = {
        execution.fence
        for job in state.jobs.values()
        for execution in job.executions
        if execution.status in LIVE and execution.request_id is not None
    }
    if {fence for granted in state.claims.values() for fence in granted} != requested:
        yield "the claims known by request are not the live ones"
    ended = {job.spec.id for job in state.jobs.values() if job.state in UNSUCCESSFUL_STATES}
    if {job.spec.id for job in state.unsuccessful.after(0)} != ended:
        yield "the failed, dead and cancelled jobs listed are not those there are"
    succeeded = sorted(
        (job for job in state.jobs.values() if job.state is JobState.SUCCEEDED and job.spec.offset is None),
        key=lambda job: (job.executions[-1].finished_at if job.executions else 0, job.seq),
    )
    if [job.spec.id for job in state.finished.first(len(state.jobs) + 1, NEVER)] != [job.spec.id for job in succeeded]:
        yield "retention would forget the successes in another order than the contract's"


def _of_schedules(state: State) -> Iterator[str]:
    for name, schedule in state.schedules.items():
        if schedule.spec.name != name:
            yield f"schedule {name} is not found by its name"
        if schedule.last_at is not None and schedule.next_at <= schedule.last_at:
            yield f"schedule {name} would decide on tick {schedule.next_at} again"
        if len(schedule.skips) > SKIPS_KEPT or len(schedule.open_ids) > OPEN_KEPT:
            yield f"schedule {name} keeps more than its latest ticks"
        kept = Counter(skip.reason for skip in schedule.skips)
        if any(schedule.skipped.get(reason, 0) < count for reason, count in kept.items()):
            yield f"schedule {name} counts fewer skipped ticks than it keeps"
        if not {job_id.split("/")[1] for job_id in schedule.open_ids} <= {name}:
            yield f"schedule {name} waits for jobs that are not its own"
    if state.schedules and state.format == PLAIN_FORMAT:
        yield "there are schedules, and the format does not say so"


def _of_formats(state: State) -> Iterator[str]:
    """W16: no record holds a verb that a reader of the state's format may not know."""
    verbs = {action.verb for action in state.actions}
    for job in state.jobs.values():
        verbs.update(refusal.verb for refusal in job.refusals)
        verbs.update(by for one in job.executions for by in (one.ended_by, one.committed_by) if by is not None)
    for verb in sorted(verbs):
        if VERB_FORMATS[verb] > state.format:
            yield f"{verb} is on record, and the format, {state.format}, does not say so"


def _awaits_claim(state: State, job: Job, queue: str, priority: int) -> bool:
    spec = job.spec
    if job.state is not JobState.READY or spec.queue != queue or spec.priority != priority or spec.offset is not None:
        return False
    if spec.rules is not None and spec.rules.limits:
        return False
    return spec.lane is None or state.lanes[queue, spec.lane].head is job
