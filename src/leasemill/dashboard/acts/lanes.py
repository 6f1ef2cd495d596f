"""Unblock a lane: redrive, cancel or purge the job at its head."""

from __future__ import annotations

from typing import Final, assert_never

from leasemill.dashboard.acts.jobs import DONE
from leasemill.dashboard.sweeps import SweepVerb
from leasemill.dashboard.viewing import Done, Given, InputField, OperatorAct, Question, Viewing
from leasemill.errors import Invalid, NotFound, Refused
from leasemill.kernel.commands import Cancelled, JobFilter, LaneView
from leasemill.operator.wording import counted
from leasemill.store.base import Store

EFFECTS: Final = {
    SweepVerb.REDRIVE: "Redrive it: it is tried again, and the lane goes on after it",
    SweepVerb.CANCEL: "Cancel it: the lane goes on without it, and it stays on record",
    SweepVerb.PURGE: "Purge it: the lane goes on without it, and it is deleted",
}


def _lane(viewing: Viewing) -> LaneView:
    queue, lane = viewing.asked("queue") or "", viewing.asked("lane") or ""
    view = viewing.store.lane(queue, lane)
    if view is None:
        raise NotFound(f"lane {lane!r} of queue {queue!r} has no work, or does not exist")
    return view


def _ask(viewing: Viewing) -> Question:
    view = _lane(viewing)
    heading = f"Unblock lane {view.lane}"
    if not view.is_blocked or view.head is None:
        return Question(heading, ["It is not blocked: its head is in progress."], "Unblock", is_possible=False)
    behind = f"{counted(view.waiting, 'job')} {'waits' if view.waiting == 1 else 'wait'} behind it."
    how = InputField(
        "how", "Action on this job", "select", SweepVerb.REDRIVE, tuple((one.value, EFFECTS[one]) for one in SweepVerb)
    )
    sentences = [f"Job {view.head.spec.id} failed and blocks the lane. {behind}"]
    return Question(heading, sentences, "Unblock", [how])


def _unblock(viewing: Viewing, given: Given) -> Done:
    view = _lane(viewing)
    if not view.is_blocked or view.head is None:
        raise Refused(f"lane {view.lane!r} of queue {view.queue!r} is not blocked any more")
    chosen = given.text("how")
    if chosen not in set(SweepVerb):
        raise Invalid(f"{chosen!r} is not an action: use redrive, cancel or purge")
    head = view.head.spec.id
    if not _act(viewing.store, SweepVerb(chosen), head, given):
        raise Refused(f"job {head!r} has just changed: reload the lane and try again")
    return Done(f"{head} {DONE[SweepVerb(chosen)]}. The lane continues.")


def _act(store: Store, how: SweepVerb, job_id: str, given: Given) -> bool:
    """Whether it changed something."""
    this = JobFilter(job_ids=(job_id,))
    match how:
        case SweepVerb.REDRIVE:
            return bool(store.redrive(this, by=given.by, reason=given.reason).job_ids)
        case SweepVerb.CANCEL:
            (outcome,) = store.cancel([job_id], by=given.by, reason=given.reason)
            return isinstance(outcome, Cancelled) and not outcome.is_repeat
        case SweepVerb.PURGE:
            return bool(store.purge(this, by=given.by, reason=given.reason).job_ids)
        case _:
            assert_never(how)


ACTS = (OperatorAct("unblock-lane", _ask, _unblock),)
