"""Unblock a lane: redrive, cancel or purge the job at its head."""

from __future__ import annotations

from typing import Final, assert_never

from leasemill.dashboard.actions.jobs import DONE
from leasemill.dashboard.bulk_actions import BulkVerb
from leasemill.dashboard.page_types import Done, Given, InputField, OperatorAction, PageContext, Question
from leasemill.errors import Invalid, NotFound, Refused
from leasemill.kernel.commands import Cancelled, JobFilter, LaneView
from leasemill.operator.wording import counted
from leasemill.store.base import Store

EFFECTS: Final = {
    BulkVerb.REDRIVE: "Redrive it: it is tried again, and the lane goes on after it",
    BulkVerb.CANCEL: "Cancel it: the lane goes on without it, and it stays on record",
    BulkVerb.PURGE: "Purge it: the lane goes on without it, and it is deleted",
}


def _lane(context: PageContext) -> LaneView:
    queue, lane = context.asked("queue") or "", context.asked("lane") or ""
    view = context.store.lane(queue, lane)
    if view is None:
        raise NotFound(f"lane {lane!r} of queue {queue!r} has no work, or does not exist")
    return view


def _ask(context: PageContext) -> Question:
    view = _lane(context)
    heading = f"Unblock lane {view.lane}"
    if not view.is_blocked or view.head is None:
        return Question(heading, ["It is not blocked: its head is in progress."], "Unblock", is_possible=False)
    behind = f"{counted(view.waiting, 'job')} {'waits' if view.waiting == 1 else 'wait'} behind it."
    how = InputField(
        "how", "Action on this job", "select", BulkVerb.REDRIVE, tuple((one.value, EFFECTS[one]) for one in BulkVerb)
    )
    sentences = [f"Job {view.head.spec.id} failed and blocks the lane. {behind}"]
    return Question(heading, sentences, "Unblock", [how])


def _unblock(context: PageContext, given: Given) -> Done:
    view = _lane(context)
    if not view.is_blocked or view.head is None:
        raise Refused(f"lane {view.lane!r} of queue {view.queue!r} is not blocked any more")
    chosen = given.text("how")
    if chosen not in set(BulkVerb):
        raise Invalid(f"{chosen!r} is not an action: use redrive, cancel or purge")
    head = view.head.spec.id
    if not _act(context.store, BulkVerb(chosen), head, given):
        raise Refused(f"job {head!r} has just changed: reload the lane and try again")
    return Done(f"{head} {DONE[BulkVerb(chosen)]}. The lane continues.")


def _act(store: Store, how: BulkVerb, job_id: str, given: Given) -> bool:
    """Act on the job, and return whether that changed anything."""
    this = JobFilter(job_ids=(job_id,))
    match how:
        case BulkVerb.REDRIVE:
            return bool(store.redrive(this, by=given.by, reason=given.reason).job_ids)
        case BulkVerb.CANCEL:
            (outcome,) = store.cancel([job_id], by=given.by, reason=given.reason)
            return isinstance(outcome, Cancelled) and not outcome.is_repeat
        case BulkVerb.PURGE:
            return bool(store.purge(this, by=given.by, reason=given.reason).job_ids)
        case _:
            assert_never(how)


ACTIONS = (OperatorAction("unblock-lane", _ask, _unblock),)
