"""`leasemill actions`: what operators did, newest first."""

from __future__ import annotations

from typing import Any

import click

from leasemill.cli.output import emit_table
from leasemill.cli.store_options import limit_option, on_store
from leasemill.kernel.model import ACTIONS_KEPT, Action, Verb
from leasemill.operator.wording import counted, instant
from leasemill.store.base import Store

OPERATOR_VERBS = (
    *(Verb.CANCEL, Verb.REDRIVE, Verb.PURGE, Verb.PAUSE, Verb.RESUME, Verb.SET_POLICY),
    *(Verb.SET_LIMIT, Verb.CLEAR_LIMIT, Verb.DECLARE_LIMIT),
    *(Verb.SET_SCHEDULE, Verb.REMOVE_SCHEDULE, Verb.PAUSE_SCHEDULE, Verb.RESUME_SCHEDULE, Verb.FIRE, Verb.BACKFILL),
    *(Verb.SEAL_GROUP, Verb.QUIET_WORKER, Verb.RESUME_WORKER, Verb.STOP_WORKER),
)


@click.command()
@click.option(
    "--verb",
    "verbs",
    multiple=True,
    type=click.Choice([verb.value for verb in OPERATOR_VERBS]),
    help="Only actions of this kind; may be repeated.",
)
@click.option("--target", help="Only actions on this job, queue, limit, group or worker; a schedule is cron/NAME.")
@click.option("--by", help="Only actions by this person.")
@limit_option()
@on_store
def actions(
    store: Store, verbs: tuple[str, ...], target: str | None, by: str | None, limit: int, as_json: bool
) -> None:
    """List what operators did, newest first: when, who, what, on what, and why.

    The latest 1,000 actions are kept. An action on many jobs is one line, with the first job and their number.
    """
    found = [
        act
        for act in store.actions(limit=ACTIONS_KEPT)
        if (not verbs or act.verb in verbs) and (target is None or target in act.targets) and by in (None, act.by)
    ]
    emit_table(
        as_json,
        (_as_json(act) for act in found[:limit]),
        ("at", "by", "act", "target", "reason"),
        [(instant(act.at), act.by, act.verb.value, _target(act), act.reason) for act in found[:limit]],
        f"{len(found) - limit:,} more: --limit {len(found)}" if len(found) > limit else "",
    )


def _target(act: Action) -> str:
    return act.target if act.count == 1 else f"{act.target} and {counted(act.count - 1, 'other')}"


def _as_json(act: Action) -> dict[str, Any]:
    plain = {"at": instant(act.at), "by": act.by, "verb": act.verb.value, "target": act.target, "reason": act.reason}
    return plain | {"count": act.count, "first_at": instant(act.began_at), "targets": list(act.targets)}
