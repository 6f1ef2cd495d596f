"""Pause and resume a queue, set its policy and its limit."""

from __future__ import annotations

import msgspec

from leasemill.api.policy import SHORTEST_LEASE_US, check_backoff, microseconds
from leasemill.dashboard.page_types import Done, Given, InputField, OperatorAction, PageContext, Question
from leasemill.dashboard.pages.queues import seconds_of
from leasemill.errors import Invalid
from leasemill.kernel.commands import QueueView
from leasemill.kernel.model import QUEUE_LIMIT, JobState, LimitTerms, OnFailure, Policy
from leasemill.operator.wording import counted

DURATIONS = {
    "lease_ttl_us": ("Lease", SHORTEST_LEASE_US),
    "timeout_us": ("Timeout", 1),
    "backoff_base_us": ("Back-off base", 0),
    "backoff_cap_us": ("Back-off cap", 0),
}
COUNTS = {"max_retries": "Retries", "max_expirations": "Expirations until quarantine"}


def _queue(context: PageContext) -> QueueView:
    return context.queue(context.asked("queue") or "")


def _ask_pause(context: PageContext) -> Question:
    queue = _queue(context)
    waiting = counted(queue.counts[JobState.READY], "job")
    return Question(
        f"Pause queue {queue.name}",
        [f"Workers claim no more of its jobs: {waiting} wait. Jobs that are running go on."],
        "Pause",
    )


def _pause(context: PageContext, given: Given) -> Done:
    queue = _queue(context)
    context.store.pause(queue.name, by=given.by, reason=given.reason)
    return Done(f"Queue {queue.name} paused.")


def _ask_resume(context: PageContext) -> Question:
    queue = _queue(context)
    waiting = counted(queue.counts[JobState.READY], "job")
    return Question(f"Resume queue {queue.name}", [f"Workers claim its jobs again: {waiting} wait."], "Resume")


def _resume(context: PageContext, given: Given) -> Done:
    queue = _queue(context)
    context.store.resume(queue.name, by=given.by, reason=given.reason)
    return Done(f"Queue {queue.name} resumed.")


def _ask_policy(context: PageContext) -> Question:
    queue = _queue(context)
    policy = queue.policy or Policy()
    fields = [
        *(InputField(name, label, "number", shown(getattr(policy, name))) for name, label in COUNTS.items()),
        *(
            InputField(name, label, "number", seconds_of(getattr(policy, name)), hint="seconds")
            for name, (label, _) in DURATIONS.items()
        ),
        InputField(
            "on_failure",
            "A lane, after a failure for good",
            "select",
            policy.on_failure or "",
            (("", "as the code declares"), *((one.value, one.value) for one in OnFailure)),
        ),
    ]
    effect = "It holds for the claims that follow, and overrides what the code declares for a kind."
    sentences = [effect, "Empty fields are left to the code."]
    return Question(f"Policy of queue {queue.name}", sentences, "Set", fields)


def _policy(context: PageContext, given: Given) -> Done:
    queue = _queue(context)
    on_failure = given.text("on_failure")
    policy = Policy(
        **{name: as_count(label, given.text(name)) for name, label in COUNTS.items()},
        **{name: _us(label, given.text(name), least) for name, (label, least) in DURATIONS.items()},
        on_failure=OnFailure(on_failure) if on_failure in set(OnFailure) else None,
    )
    check_backoff(f"queue {queue.name!r}", policy)
    context.store.set_policy(queue.name, policy, by=given.by, reason=given.reason)
    is_empty = all(value is None for value in msgspec.structs.astuple(policy))
    return Done(f"Policy of queue {queue.name} {'cleared' if is_empty else 'set'}.")


def _ask_limit(context: PageContext) -> Question:
    queue = _queue(context)
    view = context.store.limit(QUEUE_LIMIT + queue.name, limit=1)
    places = None if view is None else view.terms.places
    return Question(
        f"Limit of queue {queue.name}",
        ["How many of its jobs may be held at a time, by all workers together. An empty field removes the limit."],
        "Set",
        [InputField("places", "Jobs at a time", "number", shown(places))],
    )


def _limit(context: PageContext, given: Given) -> Done:
    queue = _queue(context)
    places = as_count("Jobs at a time", given.text("places"))
    if places is None:
        context.store.clear_limit(QUEUE_LIMIT + queue.name, by=given.by, reason=given.reason)
        return Done(f"Limit of queue {queue.name} removed.")
    context.store.set_limit(QUEUE_LIMIT + queue.name, LimitTerms(places), by=given.by, reason=given.reason)
    return Done(f"Queue {queue.name} limited to {counted(places, 'job')} at a time.")


def shown(value: int | None) -> str:
    return "" if value is None else str(value)


def as_count(label: str, text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Invalid(f"{label}: {text!r} is not a number")
    return int(text)


def _us(label: str, text: str, least_us: int) -> int | None:
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        raise Invalid(f"{label}: {text!r} is not a number of seconds") from None
    return microseconds(label, seconds, least_us=least_us)


ACTIONS = (
    OperatorAction("pause-queue", _ask_pause, _pause),
    OperatorAction("resume-queue", _ask_resume, _resume),
    OperatorAction("set-queue-policy", _ask_policy, _policy),
    OperatorAction("set-queue-limit", _ask_limit, _limit),
)
