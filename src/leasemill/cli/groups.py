"""`leasemill groups`: list, show, seal, cancel and redrive groups."""

from __future__ import annotations

from itertools import islice
from typing import Any

import click

from leasemill.cli.bulk_action import INTERRUPTED, NO_FILTERS, Report, redrive_action, run_bulk_action
from leasemill.cli.interrupt import Interruptible
from leasemill.cli.output import emit, emit_table, first_line, json_instant, print_fields, print_json, print_table
from leasemill.cli.progress import quiet_option
from leasemill.cli.store_options import acting_on_store, limit_option, on_store
from leasemill.errors import NotFound, Refused
from leasemill.kernel.commands import GroupView, JobFilter
from leasemill.kernel.model import ChainedJob, Job, JobState
from leasemill.kernel.read.filter import last_error
from leasemill.kernel.transitions.groups import end_id, then_id
from leasemill.operator.listing import PAGE, all_groups, all_jobs
from leasemill.operator.relations import progress
from leasemill.operator.wording import counted, did_you_mean, instant
from leasemill.store.base import Store
from leasemill.store.operations import cancelled

MEMBERS_SHOWN = 10
COUNTS = ("total", "succeeded", "failed", "dead", "cancelled", "unfinished")
IN_NEED = (JobState.FAILED, JobState.DEAD, JobState.CANCELLED, JobState.LEASED, JobState.READY)
"""Whose members are shown, in this order: what is in the way of a success, then what is under way."""


@click.group()
def groups() -> None:
    """List, show, seal, cancel and redrive groups."""


@groups.command("list")
@click.option("--open", "open_only", is_flag=True, help="Only groups that have not ended.")
@limit_option()
@on_store
def list_groups(store: Store, open_only: bool, limit: int, as_json: bool) -> None:
    """List groups with their members by state.

    A group is `open` until it is sealed, then `running`; it has `succeeded` if all members have, else it has `ended`.
    """
    found = list(islice(all_groups(store, open_only=open_only), limit + 1))
    emit_table(
        as_json,
        (_document(view) for view in found[:limit]),
        ("group", "state", *COUNTS, "created", "ended"),
        (
            (
                view.id,
                state_of(view),
                *(f"{getattr(view, name):,}" for name in COUNTS),
                instant(view.created_at),
                instant(view.ended_at),
            )
            for view in found[:limit]
        ),
        f"there are more: --limit {2 * limit}" if len(found) > limit else "",
    )


@groups.command()
@click.argument("group_id")
@on_store
def show(store: Store, group_id: str, as_json: bool) -> None:
    """Show a group. Prints its callbacks, and the first members that are unfinished or have not succeeded."""
    view = _found(store, group_id)
    members = {state: _members(store, group_id, state) for state in IN_NEED}
    callbacks = {
        "then": _callback(store, view.then, then_id(view.id)),
        "on_end": _callback(store, view.on_end, end_id(view.id)),
    }
    if as_json:
        shown = {state.value: [job.spec.id for job in jobs] for state, jobs in members.items()}
        print_json({**_document(view), **callbacks, "members": shown})
        return
    print_fields(
        [
            ("group", view.id),
            ("state", state_of(view).upper()),
            ("members", progress(view)),
            ("created", instant(view.created_at)),
            ("sealed", instant(view.sealed_at)),
            ("ended", instant(view.ended_at)),
            *((name, _callback_line(one, view)) for name, one in callbacks.items() if one is not None),
            *([("parent", view.parent)] if view.parent is not None else []),
        ]
    )
    rows = [
        (
            job.spec.id,
            job.state.value,
            job.spec.queue,
            job.spec.kind,
            str(job.attempt),
            first_line(last_error(job)) or "-",
        )
        for jobs in members.values()
        for job in jobs
    ]
    if rows:
        click.echo(f"\nmembers that have not succeeded (at most {MEMBERS_SHOWN} of each state)")
        print_table(("id", "state", "queue", "kind", "attempts", "error"), rows)


@groups.command()
@click.argument("group_id")
@acting_on_store
def seal(store: Store, group_id: str, reason: str, by: str, as_json: bool) -> None:
    """Seal a group. It takes no more members, and ends when its members have ended.

    Use it when the program that should have enqueued the rest is gone, and the rest is not needed.
    """
    _found(store, group_id)
    store.seal_group(group_id, by=by, reason=reason)
    view = _found(store, group_id)
    emit(as_json, _document(view), f"group {group_id} is sealed: {progress(view)}")


@groups.command()
@click.argument("group_id")
@quiet_option
@acting_on_store
def cancel(store: Store, group_id: str, is_quiet: bool, reason: str, by: str, as_json: bool) -> None:
    """Seal a group and cancel its unfinished members. The groups in it are cancelled too.

    Its `on_end` is enqueued; its `then` only if all members had succeeded. Prints how many jobs it cancelled; --json
    prints their ids.
    """
    _found(store, group_id)
    report = Report(as_json, False, "cancelled", (), shows_ids=False)
    try:
        with Interruptible() as interruptible, report.progress(None, is_quiet) as shown:
            for operated in cancelled(store, group_id, by, reason):
                report.add(operated.job_ids, shown)
                interruptible.check()
    except KeyboardInterrupt:
        raise Refused(INTERRUPTED) from None
    finally:
        report.end()


@groups.command()
@click.argument("group_id")
@click.option("--failed", is_flag=True, help="Only members that have FAILED, not those that are DEAD.")
@click.option("--dry-run", is_flag=True, help="List the jobs, and change nothing.")
@quiet_option
@acting_on_store
def redrive(
    store: Store, group_id: str, failed: bool, dry_run: bool, is_quiet: bool, reason: str, by: str, as_json: bool
) -> None:
    """Make the FAILED and DEAD members of a group READY again.

    When they have succeeded, the group's `then` is enqueued. Its `on_end` is enqueued only once, ever.
    """
    view = _found(store, group_id)
    states = (JobState.FAILED.value,) if failed else ()
    filters = {**NO_FILTERS, "group": group_id, "states": states}
    run_bulk_action(
        store, redrive_action(store, by, reason), dry_run=dry_run, as_json=as_json, is_quiet=is_quiet, **filters
    )
    if view.cancelled:
        were = counted(view.cancelled, "cancelled member is", "cancelled members are")
        click.echo(f"{were} not redriven: name them, leasemill jobs redrive JOB_ID… --include-cancelled", err=True)


# How a group is shown -------------------------------------------------------------------------------------------


def state_of(view: GroupView) -> str:
    if view.sealed_at is None:
        return "open"
    if not view.is_over:
        return "running"
    return "succeeded" if view.succeeded == view.total else "ended"


def _document(view: GroupView) -> dict[str, Any]:
    return {
        "id": view.id,
        "state": state_of(view),
        **{name: getattr(view, name) for name in COUNTS},
        "parent": view.parent,
        "created_at": instant(view.created_at),
        "sealed_at": json_instant(view.sealed_at),
        "ended_at": json_instant(view.ended_at),
    }


def _members(store: Store, group_id: str, state: JobState) -> list[Job]:
    """Return the first few members in a state."""
    where = JobFilter(group=group_id, states=frozenset({state}))
    return list(islice(all_jobs(store, where, page_size=MEMBERS_SHOWN), MEMBERS_SHOWN))


def _callback(store: Store, template: ChainedJob | None, job_id: str) -> dict[str, str | None] | None:
    if template is None:
        return None
    job = store.job(job_id)
    return {"id": job_id, "kind": template.kind, "queue": template.queue, "state": None if job is None else job.state}


def _callback_line(callback: dict[str, str | None], view: GroupView) -> str:
    return f"{callback['kind']} ({callback['id']}): {callback['state'] or _why_absent(callback, view)}"


def _why_absent(callback: dict[str, str | None], view: GroupView) -> str:
    if view.sealed_at is None:
        return "not enqueued, the group is not sealed"
    is_then = callback["id"] == then_id(view.id)
    left = view.total - view.succeeded if is_then else view.unfinished
    if not left:
        return "removed since it was enqueued"
    missing = "succeeded" if is_then else "ended"
    return f"not enqueued, {counted(left, 'member has', 'members have')} not {missing}"


def _found(store: Store, group_id: str) -> GroupView:
    view = store.group(group_id)
    if view is None:
        near = did_you_mean(group_id, (one.id for one in islice(all_groups(store), PAGE)))
        raise NotFound(f"there is no group {group_id!r}{near or ': it was never created, or retention has removed it'}")
    return view
