"""Cancel a group, as far as it has not ended, and seal one whose producer is gone."""

from __future__ import annotations

from leasemill.dashboard.page_types import Done, Given, OperatorAction, PageContext, Question
from leasemill.errors import NotFound, Refused
from leasemill.kernel.commands import GroupView
from leasemill.operator.relations import progress


def _group(context: PageContext) -> GroupView:
    group_id = context.asked("id") or ""
    view = context.store.group(group_id)
    if view is None:
        raise NotFound(f"there is no group {group_id!r}: it was never created, or retention has removed it")
    return view


def _ask_cancel(context: PageContext) -> Question:
    view = _group(context)
    sentences = [
        f"It has {progress(view)}.",
        "It is sealed, and its unfinished members are cancelled, those of groups in it too.",
        "Jobs that are running are stopped.",
        "Its `then` is not enqueued, unless all members had succeeded; its `on_end` is.",
    ]
    return Question(f"Cancel group {view.id}", sentences, "Cancel the group", is_possible=not view.is_over)


def _cancel(context: PageContext, given: Given) -> Done:
    view = _group(context)
    if view.is_over:
        raise Refused(f"group {view.id!r} is over: all its members have ended")
    action = context.bulk_actions.cancel_group(view, given.by, given.reason)
    return Done("Started.", f"/sweeps/{action.id}")


def _ask_seal(context: PageContext) -> Question:
    view = _group(context)
    sentences = [
        f"It has {progress(view)}.",
        "It takes no more members, and ends when those it has have ended.",
        "Do it when the program that was to enqueue the rest is gone, and the rest is not needed.",
    ]
    return Question(f"Seal group {view.id}", sentences, "Seal", is_possible=view.sealed_at is None)


def _seal(context: PageContext, given: Given) -> Done:
    view = _group(context)
    context.store.seal_group(view.id, by=given.by, reason=given.reason)
    return Done(f"Group {view.id} sealed.")


ACTIONS = (
    OperatorAction("cancel-group", _ask_cancel, _cancel, is_dangerous=True),
    OperatorAction("seal-group", _ask_seal, _seal),
)
