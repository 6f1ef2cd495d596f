"""When and how much: every decision of the worker about time and amounts, as pure functions.

No clock, no randomness, no I/O: times are seconds of the worker's monotonic clock, given by the caller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from leasemill.kernel.model import LossReason

BEAT_FRACTION: Final = 0.3
"""The fraction of a lease after which it is extended."""

BEAT_TOGETHER_FRACTION: Final = 0.5
"""The fraction of the time until a lease is due to be extended, after which it is extended along with others."""

HURRY_EVERY_S: Final = 0.25
"""How often leases are extended ahead of time, at most, because running jobs were cancelled."""

MARGIN_FRACTION: Final = 0.1
"""The fraction of a lease that is left when its handler is stopped."""

PREFETCH_ROUND_TRIPS: Final = 16
"""Jobs are claimed ahead of their slots to cover the time the store takes to answer, with room to spare."""

PREFETCH_SHORTEST_S: Final = 0.005
PREFETCH_LONGEST_S: Final = 0.1
PREFETCH_MOST: Final = 4_000

PACE_MEMORY_S: Final = 0.2
"""How long the pace at which jobs end is remembered."""

PATIENCE_S: Final = 1.0
"""How long a job claimed ahead may wait for a slot before it is given back."""

LOOK_AHEAD_S: Final = 0.1
"""How often it is looked whether jobs that wait for a slot will have one in time."""

FLUSH_SIZE: Final = 64
FLUSH_WINDOW_S: Final = 0.002
COMMITTED_WINDOW_S: Final = 0.02
"""How long the end of a job that has committed, and for which no other job waits, may go unreported."""

LATE_START_S: Final = 0.01
"""A run that takes longer than this has its start reported while it runs."""

REPORTED_START_S: Final = 0.002
"""For a run shorter than this only the end is reported, which implies its start (X3)."""

STUCK_AFTER_S: Final = 5.0
"""How long after its job was over a handler may still run before its slot counts as stuck."""

KILL_GRACE_S: Final = 2.0
"""How long a handler in a process of its own may take to clean up after SIGTERM."""

KILL_MARGIN_S: Final = 0.1
"""How long before the end of its lease a process is killed."""

PUT_OFF_SHORTEST_S: Final = 1
PUT_OFF_LONGEST_S: Final = 60

MISMATCH_SHORTEST_S: Final = 1.0
MISMATCH_FRACTION: Final = 1 / 60
"""The fraction of the mismatch timeout that is the longest wait. All tries of a timeout are then among the recorded
executions (I8)."""


# Leases ----------------------------------------------------------------------------------------------------------


def held_until(sent_at: float, lease_s: float) -> float:
    """Until when a lease may be relied on: counted from before it was asked for, less a safety margin."""
    return sent_at + lease_s * (1 - MARGIN_FRACTION)


def beat_at(sent_at: float, lease_s: float, longest_s: float | None) -> float:
    """When a lease granted or extended by a call sent at `sent_at` is to be extended."""
    interval_s = lease_s * BEAT_FRACTION
    return sent_at + (interval_s if longest_s is None else min(interval_s, longest_s))


def retry_beat_s(lease_s: float) -> float:
    """How long to wait, at most, before an extension that did not come through is asked for again."""
    return lease_s / 10


def worth_extending(now: float, sent_at: float, lease_s: float, longest_s: float | None) -> bool:
    """Old enough to be extended together with another lease that is due; one that is due itself is."""
    return now - sent_at >= (beat_at(sent_at, lease_s, longest_s) - sent_at) * BEAT_TOGETHER_FRACTION


def kill_at(reason: str | None, now: float, ends_at: float) -> float:
    """When the process of a handler whose lease is lost is killed, after it was stopped now.

    Nobody else runs a cancelled job, so its handler may clean up. One whose lease could not be extended (no reason) may
    do so until the lease is over. Otherwise another worker may be running the job already: at once.
    """
    if reason == LossReason.CANCELLED:
        return now + KILL_GRACE_S
    return min(now + KILL_GRACE_S, max(now, ends_at - KILL_MARGIN_S)) if reason is None else now


# Claims ----------------------------------------------------------------------------------------------------------


def prefetch(pace: float, round_trip_s: float, most: int) -> int:
    """How many jobs to hold ahead: what will be run while the store is asked for more, at the pace seen so far.

    Slow handlers make it 0. Quick ones on a quick store make it small, on a slow store larger; never more than `most`.
    """
    window_s = min(max(PREFETCH_ROUND_TRIPS * round_trip_s, PREFETCH_SHORTEST_S), PREFETCH_LONGEST_S)
    return min(most, int(pace * window_s))


def too_many_ahead(queued: int, pace: float) -> int:
    """C9: of the jobs that wait for a slot, how many will have none within the patience if jobs end at this pace."""
    return max(0, queued - int(pace * PATIENCE_S))


def pace(before: float, ended: int, elapsed_s: float, known_s: float = math.inf) -> float:
    """Jobs that end in a second: the estimate before, corrected by what was seen since.

    `known_s`: how long jobs were observed before. At the beginning the estimate is their average: right at once.
    """
    if elapsed_s <= 0:
        return before
    weight = max(1 - math.exp(-elapsed_s / PACE_MEMORY_S), elapsed_s / (known_s + elapsed_s))
    return before + weight * (ended / elapsed_s - before)


def known_s(before_s: float, ended: int, elapsed_s: float) -> float:
    """How long jobs have been observed, after `elapsed_s` in which `ended` ended. After a pause it starts at zero."""
    return 0.0 if ended == 0 and (before_s == 0 or elapsed_s >= PACE_MEMORY_S) else before_s + elapsed_s


def round_trip_s(before_s: float, seen_s: float) -> float:
    """How long the store takes to answer, as a moving average."""
    return before_s + 0.2 * (seen_s - before_s)


def claim_size(concurrency: int, ahead: int, active: int, queued: int, unreported: int) -> int:
    """How many jobs to claim now; 0: wait. Held jobs, reports under way included, never exceed slots and prefetch."""
    room = concurrency + ahead - active - queued - unreported
    if room <= 0:
        return 0
    free_slots = concurrency - active - queued
    if free_slots > 0 or queued <= ahead // 2:
        return room
    return 0


def free_slots(concurrency: int, active: int, queued: int) -> int:
    """T8: how many jobs can start at once."""
    return max(0, concurrency - active - queued)


def patience_s(lease_s: float) -> float:
    """How long a claimed job may wait for a slot: it is not extended while it waits."""
    return min(PATIENCE_S, lease_s * BEAT_FRACTION)


def idle_s(due_in_us: int | None, poll_s: float) -> float:
    """How long to wait for a notification before asking again."""
    return poll_s if due_in_us is None else min(poll_s, due_in_us / 1_000_000)


def pause_s(empty_claims: int) -> float:
    """A short rest after several claims in a row that were empty: notifications of others' jobs must cost little."""
    return 0.0 if empty_claims <= 1 else min(0.001 * empty_claims, 0.01)


def is_request_stale(first_sent_at: float, now: float, shortest_lease_s: float) -> bool:
    """A claim repeated for so long that what it was first granted is hardly worth having."""
    return now - first_sent_at > shortest_lease_s / 2


def queue_order(weights: Mapping[str, int], credit: Mapping[str, int]) -> tuple[list[str], dict[str, int]]:
    """The order in which to serve queues now, and the credit to come with next time.

    Smooth weighted round robin: over time each queue comes first as often as its weight says, evenly spread; whoever
    is not first follows in the order of credit, so that an empty queue's turn is not lost.
    """
    earned = {name: credit.get(name, 0) + weight for name, weight in weights.items()}
    order = sorted(earned, key=lambda name: (-earned[name], name))
    if order:
        earned[order[0]] -= sum(weights.values())
    return order, earned


# Reports ---------------------------------------------------------------------------------------------------------


def flush_in_s(pending: int, queued: int, *, is_urgent: bool) -> float:
    """How long to wait for more reports before sending: not at all, unless more will come at once and few are here.

    Not urgent: all of them are ends of jobs that have committed. They wait while more jobs are at hand than reports are
    pending, so that claims, which count both, do not wait for them.
    """
    if not queued or pending >= FLUSH_SIZE:
        return 0.0
    if is_urgent:
        return FLUSH_WINDOW_S
    return COMMITTED_WINDOW_S if pending < queued else 0.0


def starts_durably(attempt: int, retries: int, expirations: int) -> bool:
    """The start must be on record before the handler runs: an earlier run ended otherwise than by reporting.

    Otherwise a handler that kills its worker at once would never be seen to start, and never be quarantined (F4).
    """
    return expirations > 0 or attempt - 1 > retries


def put_off_us(attempt: int) -> int:
    """How long to leave a job alone whose last run has not returned in this worker."""
    return 1_000_000 * min(PUT_OFF_SHORTEST_S << min(attempt - 1, 10), PUT_OFF_LONGEST_S)


def mismatch_delay_us(tries: int, timeout_s: float, jitter: float) -> int:
    """How long to leave a job alone that was given back `tries` times, this one included, as no code matched it."""
    longest_s = max(MISMATCH_SHORTEST_S, timeout_s * MISMATCH_FRACTION)
    ceiling_s = min(MISMATCH_SHORTEST_S * (1 << min(max(tries, 1) - 1, 20)), longest_s)
    return int(1_000_000 * ceiling_s * (0.75 + jitter / 4))
