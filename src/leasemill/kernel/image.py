"""A state as plain values, to be written down and read back: snapshots and digests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from heapq import heappush
from typing import cast

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from leasemill.kernel.index.ranges import Ranges
from leasemill.kernel.index.taken_keys import ANY_QUEUE, Key
from leasemill.kernel.model import Action, Job, JobGroup, LimitRecord, Policy, QueueMode, Verb, WorkerOrder
from leasemill.kernel.schedule import Schedule
from leasemill.kernel.state import (
    CANCELLED,
    LEASED,
    PLAIN_FORMAT,
    READY,
    SUCCEEDED,
    Lane,
    State,
    finished_at,
    list_if_over,
    make_ready,
    take_places,
)
from leasemill.kernel.transitions.executions import hold
from leasemill.kernel.transitions.lanes import enter_lane
from leasemill.kernel.transitions.unique import follows, kept_until, taker_of, unique_of
from leasemill.kernel.verbs.limits import move_tat, restore_record


class QueueImage(Struct, frozen=True, array_like=True):
    name: str
    mode: QueueMode | None
    is_paused: bool
    policy: Policy | None


class LaneImage(Struct, frozen=True, array_like=True):
    queue: str
    lane: str
    finished: tuple[tuple[int, int], ...]
    failed: tuple[tuple[int, int], ...]
    last_finished: str | None


class KeyImage(Struct, frozen=True, array_like=True):
    """A unique key that does not follow from a job: it is kept although its job has ended or is forgotten (U3)."""

    key: str
    job_id: str
    until: int
    queue: str = ANY_QUEUE


class RateImage(Struct, frozen=True, array_like=True):
    name: str
    key: str | None
    tat: int


class PlainAction(Struct, frozen=True, array_like=True):
    """The fields of every action: who did what to one target, when and why."""

    at: int
    verb: Verb
    by: str
    target: str
    reason: str


class Image(Struct, frozen=True, array_like=True):
    """The image of a state without its jobs; with the jobs in order it is the whole state."""

    seq: int
    fence: int
    queues: tuple[QueueImage, ...]
    lanes: tuple[LaneImage, ...]
    actions: tuple[Action, ...]
    format: int = PLAIN_FORMAT
    groups: tuple[JobGroup, ...] = ()
    keys: tuple[KeyImage, ...] = ()
    limits: tuple[LimitRecord, ...] = ()
    rates: tuple[RateImage, ...] = ()
    schedules: tuple[Schedule, ...] = ()


class ImageWithWorkerCommands(Image, frozen=True, array_like=True):
    """The image of a state in which operators sent commands to workers; a state without them has a plain `Image`."""

    worker_commands: tuple[WorkerOrder, ...] = ()


def image(state: State) -> Image:
    """Return the image that `restore` needs beside `jobs_in_order`; it is the same for the same events."""
    plain = _plain_image(state)
    if not state.worker_commands:
        return plain
    return ImageWithWorkerCommands(**asdict(plain), worker_commands=tuple(state.worker_commands.values()))


def _plain_image(state: State) -> Image:
    return Image(
        state.seq,
        state.fence,
        tuple(
            QueueImage(queue.name, queue.mode, queue.is_paused, queue.policy)
            for queue in sorted(state.queues.values(), key=lambda queue: queue.name)
        ),
        tuple(
            LaneImage(*key, tuple(lane.finished or ()), tuple(lane.failed or ()), lane.last_finished)
            for key, lane in sorted(state.lanes.items(), key=lambda item: item[0])
            if lane.finished or lane.failed
        ),
        tuple(_written(one) for one in state.actions),
        state.format,
        tuple(replace(group) for group in sorted(state.groups.values(), key=lambda group: group.seq)),
        tuple(_kept_keys(state)),
        tuple(limit.record for _, limit in sorted(state.limits.items()) if limit.record is not None),
        tuple(
            RateImage(name, tally.key, tally.tat)
            for name, limit in sorted(state.limits.items())
            for tally in sorted(limit.tallies.values(), key=lambda tally: (tally.key is not None, tally.key or ""))
            if tally.tat
        ),
        tuple(schedule for _, schedule in sorted(state.schedules.items())),
    )


def _written(action: Action) -> Action:
    """Write an action on a single target without the fields for many, which have defaults when it is read."""
    if action.count > 1:
        return action
    return cast(Action, PlainAction(action.at, action.verb, action.by, action.target, action.reason))


def _read(action: Action | PlainAction) -> Action:
    if isinstance(action, Action):
        return action
    return Action(action.at, action.verb, action.by, action.target, action.reason)


def _kept_keys(state: State) -> Iterator[KeyImage]:
    """The others follow from the jobs that hold them."""
    for key, taken in sorted(state.keys.items(), key=lambda item: (item[0], item[1].queue)):
        job = taker_of(state, key, taken)
        if taken.until and (job is None or not follows(job)):
            yield KeyImage(key, taken.job_id, taken.until, taken.queue)


def jobs_in_order(state: State) -> Iterator[Job]:
    return state.listing.after(0)


def restore(image: Image, jobs: Iterable[Job], state: State | None = None) -> State:
    """The state an image and its jobs were taken from; `state`: an empty one that becomes it."""
    state = state or State()
    state.seq, state.fence, state.format = image.seq, image.fence, image.format
    state.actions.extend(_read(one) for one in image.actions)
    if isinstance(image, ImageWithWorkerCommands):
        state.worker_commands.update((one.instance, one) for one in image.worker_commands)
    for record in image.limits:
        restore_record(state, state.limit(record.name), record)
    for rate in image.rates:
        move_tat(state, rate.name, rate.key, rate.tat)
    for one in image.queues:
        queue = state.queue(one.name)
        queue.mode, queue.is_paused, queue.policy = one.mode, one.is_paused, one.policy
    for schedule in image.schedules:
        state.schedules[schedule.spec.name] = replace(schedule)
    for lane_image in image.lanes:
        lane = state.lanes[lane_image.queue, lane_image.lane] = Lane()
        lane.finished = Ranges(lane_image.finished) if lane_image.finished else None
        lane.failed = Ranges(lane_image.failed) if lane_image.failed else None
        lane.last_finished = lane_image.last_finished
    for group in image.groups:
        state.groups[group.id] = group
        list_if_over(state, group)
    for job in jobs:
        _place(state, job)
    for kept in image.keys:
        taken = Key(kept.job_id, kept.until, kept.queue or _queue_of_taker(state, kept))
        state.keys.put(kept.key, taken)
        if taker_of(state, kept.key, taken) is None:
            heappush(state.kept_keys, (kept.until, taken.queue, kept.key))
    return state


def _queue_of_taker(state: State, kept: KeyImage) -> str:
    """Images from before keys belonged to queues do not name the queue: it is that of the job, if that is there."""
    job = state.jobs.get(kept.job_id)
    unique = None if job is None else unique_of(job.spec)
    return job.spec.queue if job is not None and unique is not None and unique.key == kept.key else ANY_QUEUE


def digest(state: State) -> str:
    """The same for the same events, in any process."""
    encoder = msgspec.msgpack.Encoder()
    hashed = blake2b(encoder.encode(image(state)), digest_size=16)
    for job in jobs_in_order(state):
        hashed.update(encoder.encode(job))
    return hashed.hexdigest()


def _place(state: State, job: Job) -> None:
    """Put a restored job where it belongs; jobs come in the order of their sequence numbers."""
    spec = job.spec
    if job.is_cancelled:
        job.state = CANCELLED  # images of format 1 from before this state existed have DEAD
    state.queue(spec.queue).counts[job.state] += 1
    state.jobs[spec.id] = job
    state.listing.add(job)
    if spec.rules is not None and spec.rules.unique is not None and follows(job):
        state.keys.put(spec.rules.unique.key, Key(spec.id, kept_until(job), spec.queue))
    in_lane = spec.lane is not None and (job.state in (READY, LEASED) or job.blocks_lane)
    is_first = enter_lane(state, job) if in_lane else True
    if job.state is READY:
        if is_first:
            make_ready(state, job, job.updated_at)
    elif job.state is LEASED:
        hold(state, job.executions[-1])
        if spec.rules is not None:
            take_places(state, job)
    elif job.state is SUCCEEDED:
        if spec.offset is None:
            state.finished.push(finished_at(job), job.seq, job)
    else:
        state.unsuccessful.add(job)
