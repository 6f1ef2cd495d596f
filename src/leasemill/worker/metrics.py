"""What a worker counts. Plain numbers that only rise, but for the few about the present."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Metrics:
    """Counters since the worker started. Read them at any time, from any thread; never write them."""

    claims: int = 0
    claims_empty: int = 0
    claimed: int = 0
    started: int = 0

    succeeded: int = 0
    retried: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0
    """Leases that were not this worker's any more while it still had the job."""
    refused: int = 0
    """Reports the store refused because the lease was not held."""
    timed_out: int = 0
    died: int = 0
    """Runs whose process died: a crash, or the system killed it."""
    mismatched: int = 0
    """Claims of jobs that this worker's code cannot run: of a kind it does not declare, or with other arguments."""
    run_seconds: float = 0.0

    loop_blocked: int = 0
    """How often a handler blocked the event loop for a second or longer."""
    loop_stalled_seconds: float = 0.0
    """How long the event loop stood still, in total."""

    flushes: int = 0
    beats: int = 0
    beats_failed: int = 0
    extended: int = 0
    not_extended: int = 0
    """Leases in an answered heartbeat whose end the store did not move."""
    unavailable: int = 0
    """Calls the store could not answer; each was repeated."""

    taken_over: int = 0
    """Jobs this worker ran after a lease of somebody's had run out."""
    taken_over_seconds: float = 0.0
    """How long they had been without a holder, from the end of that lease to the beginning of ours, in total."""
    taken_over_seconds_max: float = 0.0

    reaper_runs: int = 0
    reaper_recovered: int = 0
    """Expiries this worker's process recorded: its reaper, its claims, its refused reports, the opening of a folder."""
    reaper_recovered_last_run: int = 0
    """Those of the reaper's latest run, and of what went on meanwhile."""
    reaper_stuck_seconds: float = 0.0
    """How long the recovered jobs had been without a holder, in total."""
    reaper_stuck_seconds_max: float = 0.0
    dead_workers: int = 0
    """Workers this one found dead, or without a record that is renewed: stopped or cut off."""
    deaths: int = 0
    """Leases this one ended because their holder was proved dead."""

    ticks_fired: int = 0
    """Jobs this worker made for ticks of schedules."""
    ticks_skipped: int = 0
    """Ticks it decided on that made no job."""

    stuck_runs: int = 0
    """Handlers that had not returned long after their job had timed out or was lost."""

    running: int = 0
    """Now: slots taken."""
    stuck: int = 0
    """Now: slots taken by handlers whose job has timed out or was lost, and that have not returned."""
    queued: int = 0
    """Now: jobs that wait for a slot."""
