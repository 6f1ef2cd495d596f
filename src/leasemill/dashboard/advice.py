"""Advice as buttons: what an explanation advises an operator to type, as a link to the same action. Pure.

Advice is a command line, or a sentence where no command helps; both are shown as they are, with the buttons beside.
"""

from __future__ import annotations

import shlex

from msgspec import Struct

from leasemill.kernel.model import Job


class AdvisedAction(Struct, frozen=True):
    """A button: an action with its fields, or a page if `act` is None."""

    label: str
    act: str | None
    path: str
    fields: dict[str, str]


class Advised(Struct, frozen=True):
    text: str
    acts: list[AdvisedAction]


def advised(line: str, lane_head: Job | None = None) -> Advised:
    """Return the line with its buttons. `lane_head`: the job at the head of the lane that is explained."""
    return Advised(line, _acts(line, lane_head))


def _acts(line: str, lane_head: Job | None) -> list[AdvisedAction]:
    try:
        words = shlex.split(line)
    except ValueError:
        return []
    match words:
        case ["leasemill", "queues", "resume", queue, *_]:
            return [_act("Resume the queue", "resume-queue", queue=queue)]
        case ["leasemill", "jobs", "redrive", "--id", job_id, *_]:
            return [_act("Redrive", "redrive-jobs", job=job_id)]
        case ["leasemill", "jobs", "cancel", job_id, *_]:
            return [_act("Cancel", "cancel-jobs", job=job_id)]
        case ["leasemill", "jobs", "explain", job_id]:
            return [_page("Open that job", "/job", id=job_id)]
        case ["leasemill", "lanes", "unblock", *_] if lane_head is not None:
            head = lane_head.spec.id
            verbs = ("Redrive", "Cancel", "Purge")
            return [_act(f"{verb} the lane's head", f"{verb.lower()}-jobs", job=head) for verb in verbs]
        case ["leasemill", "limits", "show", name]:
            return [_page("Open the limit", "/limits", name=name)]
        case ["leasemill", "workers", "resume", worker, *_]:
            return [_act("Resume the worker", "resume-worker", worker=worker)]
        case ["leasemill", "workers"]:
            return [_page("Open the workers", "/workers")]
        case ["leasemill", "cron", "resume", name, *_]:
            return [_act("Resume the schedule", "resume-schedule", name=name)]
        case ["leasemill", "cron", _, name, *_]:
            return [_page("Open the schedule", "/schedules", name=name)]
        case ["leasemill", "groups", _, group, *_]:
            return [_page("Open the group", "/groups", id=group)]
        case _:
            return []


def _act(label: str, act: str, **fields: str) -> AdvisedAction:
    return AdvisedAction(label, act, f"/acts/{act}", fields)


def _page(label: str, path: str, **fields: str) -> AdvisedAction:
    return AdvisedAction(label, None, path, fields)
