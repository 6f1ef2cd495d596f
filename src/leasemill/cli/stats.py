"""`leasemill stats`: count jobs by queue and state, once or repeatedly."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import click
import msgspec

from leasemill.cli.output import print_json, print_table
from leasemill.cli.store_options import on_store
from leasemill.kernel.commands import LimitView
from leasemill.kernel.model import QUEUE_LIMIT, SECOND, JobState
from leasemill.operator.listing import all_queues, late_schedules, open_groups
from leasemill.operator.wording import counted, did_you_mean, listed, span, without_room
from leasemill.operator.workers import ahead_or_behind, clocks_apart
from leasemill.store.base import Store
from leasemill.store.worker_records import records

MISMATCHED_SHOWN = 5
LIMITS_READ = 1_000
LIMITS_SHOWN = 5
SCHEDULES_SHOWN = 5
UNSERVED_SHOWN = 5
CLOCKS_SHOWN = 5


@click.command()
@click.option("--watch", is_flag=True, help="Repeat until interrupted, with rates.")
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.1),
    help="Seconds between two counts, with --watch.",
)
@on_store
def stats(store: Store, watch: bool, interval: float, as_json: bool) -> None:
    """Count jobs by queue and state."""
    before: dict[str, Any] | None = None
    while True:
        found = gathered(store)
        if as_json:
            print_json(found)
        else:
            if watch:
                click.clear()
            _print(found, before)
        if not watch:
            return
        before = found
        try:
            time.sleep(interval)
        except KeyboardInterrupt:
            return


def gathered(store: Store) -> dict[str, Any]:
    now, totals = store.time(), store.totals()
    workers = [record for record, age_s in records(store.presence) if not record.is_stale(age_s)]
    served = {queue for worker in workers if worker.claims for queue in worker.queues}
    groups = open_groups(store)
    mismatched: Counter[str] = Counter()
    for record in workers:
        mismatched.update(record.mismatched)
    return {
        "at": now / SECOND,
        "jobs": dict(totals.counts),
        "leases": totals.timed_leases,
        "claims_ever": totals.fence,
        "workers": len(workers),
        "clocks_apart": {worker: {"ahead_s": ahead_s} for worker, ahead_s in clocks_apart(workers).items()},
        "stuck_slots": sum(len(worker.stuck) for worker in workers),
        "mismatched": dict(mismatched.most_common()),
        "late_schedules": {name: {"late_us": late_us} for name, late_us in late_schedules(store).items()},
        "disk": msgspec.to_builtins(store.room()),
        "groups": {"open": groups.count, "unsealed": groups.unsealed},
        "limits": {
            view.name: {
                "places": view.terms.places,
                "held": view.held,
                "waiting": view.waiting,
                "is_full": _is_full(view),
            }
            for view in store.limits(limit=LIMITS_READ)
        },
        "queues": {
            queue.name: {
                "jobs": dict(queue.counts),
                "is_paused": queue.is_paused,
                "is_served": queue.name in served,
                "due_in_us": store.due_in([queue.name]) if queue.mode == "claim" else None,
            }
            for queue in all_queues(store)
        },
    }


def _is_full(limit: LimitView) -> bool:
    """Return whether a limit is full. Of one that counts for each key this is not known: its keys are not read."""
    places = limit.terms.places
    counts_once = bool(limit.holders) or limit.name.startswith(QUEUE_LIMIT)
    return places == 0 or (places is not None and counts_once and limit.held >= places)


def _print(found: dict[str, Any], before: dict[str, Any] | None) -> None:
    rows = [
        (name, *(f"{queue['jobs'][state]:,}" for state in JobState), _next(queue))
        for name, queue in found["queues"].items()
    ]
    rows.append(("all", *(f"{found['jobs'][state]:,}" for state in JobState), ""))
    print_table(("queue", *(state.value for state in JobState), "next"), rows)
    line = ", ".join(
        [
            counted(found["workers"], "worker"),
            counted(found["leases"], "lease"),
            f"{counted(found['claims_ever'], 'claim')} so far",
        ]
    )
    if before is not None and found["at"] > before["at"]:
        elapsed = found["at"] - before["at"]
        line += f"; {(found['claims_ever'] - before['claims_ever']) / elapsed:,.0f} claims/s"
    click.echo(line)
    waiting = unserved(found["queues"])
    if waiting:
        click.echo(f"no worker serves: {listed(waiting, UNSERVED_SHOWN)} (see `leasemill workers`)")
    if found["stuck_slots"]:
        click.echo(f"slots stuck in handlers that never returned: {found['stuck_slots']} (see `leasemill workers`)")
    apart = [f"{worker} ({ahead_or_behind(one['ahead_s'])} it)" for worker, one in found["clocks_apart"].items()]
    if apart:
        click.echo(f"workers whose clock differs from the store's: {listed(apart, CLOCKS_SHOWN)}")
    full = [
        f"{name} ({limit['held']:,} of {limit['places']:,} held, {limit['waiting']:,} waiting)"
        for name, limit in found["limits"].items()
        if limit["is_full"] and limit["waiting"]
    ]
    if full:
        click.echo(f"full limits with waiting jobs: {listed(full, LIMITS_SHOWN)} (see `leasemill limits list`)")
    late = [f"{name} ({span(one['late_us'])})" for name, one in found["late_schedules"].items()]
    if late:
        click.echo(f"late schedules: {listed(late, SCHEDULES_SHOWN)} (see `leasemill cron list`)")
    if found["disk"] is not None and found["disk"]["is_full"]:
        click.echo(f"the disk is full: {without_room(found['disk']['needed_bytes'])}")
    groups = found["groups"]
    if groups["open"]:
        line = f"{counted(groups['open'], 'group')} open, {groups['unsealed']:,} not sealed"
        click.echo(f"{line} (see `leasemill groups list --open`)")
    if found["mismatched"]:
        largest = list(found["mismatched"].items())[:MISMATCHED_SHOWN]
        kinds = ", ".join(f"{kind} ({count:,} claims)" for kind, count in largest)
        click.echo(f"jobs that do not match the code of their workers: {kinds}")


def unserved(queues: dict[str, dict[str, Any]]) -> list[str]:
    """Return queues whose due jobs no running worker claims. A name like that of a served queue may be a typo."""
    served = [name for name, queue in queues.items() if queue["is_served"]]
    return [
        f"{name} ({counted(queue['jobs'][JobState.READY], 'job')}{did_you_mean(name, served)})"
        for name, queue in queues.items()
        if queue["due_in_us"] == 0 and not queue["is_served"] and not queue["is_paused"]
    ]


def _next(queue: dict[str, Any]) -> str:
    if queue["is_paused"]:
        return "paused"
    due_in_us = queue["due_in_us"]
    if due_in_us is None:
        return "-"
    return "due" if due_in_us == 0 else f"in {span(due_in_us)}"
