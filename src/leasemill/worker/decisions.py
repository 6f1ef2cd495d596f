"""What the worker's loop does next: claims and reports, decided by one pure function of one state.

No clock, no randomness, no I/O: `store_loop` keeps the state up to date, carries out what is decided here, and keeps
nothing else that it would decide by. The amounts and windows are in `pacing`. What must never happen here: a claim
whose jobs would exceed the slots and what is held ahead of them, or a state in which nothing is awaited although work
is left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from leasemill.worker import pacing

CLAIM_MOST: Final = 1_000
REPORTS_S: Final = 0.02
"""How long jobs under limits may take, run and reported, that the next claim waits for them alone."""
FED_S: Final = 0.005
"""How long after a claim that went along with reports the next such is waited for, and nothing else is looked at."""
POLL_S: Final = 1.0
"""How long to wait for a notification before claiming anyway."""


@dataclass(slots=True)
class LoopState:
    """All that the next exchange with the store is decided by: plain numbers and facts.

    It is the loop's memory: events change it, and no decision does. It is not frozen, because a copy for each decision
    costs more than all else about it. Times are monotonic; `math.inf` means never, `-math.inf` long enough ago.
    """

    now: float = 0.0

    # What the worker holds.
    slots: int = 1
    active: int = 0
    queued: int = 0
    prefetch: int = 0
    """How many jobs to hold beyond the slots."""
    unreported: int = 0
    """Ends that the store has not answered, whether they are sent or not."""
    set_aside: int = 0
    """Room that other things take: jobs without a handler that are being looked up, hooks that do not keep up."""
    is_quiet: bool = False
    """O13: an operator asked the worker to claim nothing."""

    # Reports that wait to be sent.
    reports: int = 0
    acks: int = 0
    """How many of the reports are of jobs that succeeded."""
    are_lanes: bool = False
    """One of the reports ends a job of a lane."""
    has_starts: bool = False
    reports_since: float = math.inf
    urgent_since: float = math.inf
    """Since when a report waits that others wait for."""
    is_sending: bool = False
    sends_all: bool = False
    """The worker stops: nothing is gained by waiting for company."""
    is_broken: bool = False
    """The store cannot be trusted with another report."""

    # Claims.
    takes_jobs: bool = True
    """False before the worker begins to claim, and after it has ended to."""
    is_stopping: bool = False
    is_claiming: bool = False
    asked_along: int = 0
    """How many jobs the claim that goes along with the reports under way asks for; 0: none goes along."""
    must_claim: bool = False
    """Something may have become claimable since the latest claim was sent."""
    wanted_since: float = -math.inf
    """Since when a claim is wanted and no report was answered."""
    has_more: bool = False
    """The latest claim was granted all that it asked for."""
    are_limited: bool = False
    """T8: the latest jobs are under limits of their own."""
    has_limit: bool = False
    """One of the queues has a limit."""
    granted_at: float = -math.inf
    """When jobs were last granted."""
    fed_at: float = -math.inf
    """When a claim that went along with reports was last answered."""
    rest_until: float = -math.inf
    """After empty claims: when to ask again."""
    unanswered_since: float | None = None
    """When the claim was first sent whose reply was lost, until it is repeated or given up."""
    retry_at: float = 0.0
    shortest_lease_s: float = math.inf

    # Waiting for jobs.
    is_asking: bool = False
    """The store is being asked when a job is due."""
    is_watching: bool = False
    is_watch_ending: bool = False
    """The watch was cancelled, and has not ended yet."""
    is_asked: bool = False
    """It has said when a job is due, since the latest claim, or could not."""
    is_due_known: bool = False
    due_in_us: int | None = None

    # Draining.
    drains: bool = False
    drain_wait_us: int = 0
    is_idle: bool = False
    """Nothing is left to run, to report or to call."""
    found_nothing: bool = False
    """The latest claim was sent when nothing was left, and was granted nothing."""


class Send(NamedTuple):
    """Send the reports, and with them a claim of this many jobs, if it is not 0."""

    claim: int


class ClaimJobs(NamedTuple):
    """Claim this many jobs."""

    size: int


class RepeatClaim(NamedTuple):
    """Send the claim again whose reply was lost."""


class AskWhenDue(NamedTuple):
    """Ask the store when the next job is due."""


class WatchForJobs(NamedTuple):
    """Wait for the store's notification, no longer than this."""

    timeout_s: float


class StopWatching(NamedTuple):
    """Stop waiting for the store's notification."""


class EndClaims(NamedTuple):
    """Claim no more: the worker stops, or has drained its queues."""


class Wait(NamedTuple):
    """Do nothing before this time, unless something happens."""

    until: float


Decision: TypeAlias = Send | ClaimJobs | RepeatClaim | AskWhenDue | WatchForJobs | StopWatching | EndClaims | Wait


def next(state: LoopState) -> Decision:  # noqa: A001  (the loop's question: what next?)
    """What the worker's loop does now. Every rule has a row in tests/worker/test_decisions.py.

    Reports come first, because what is not reported counts as held:

    - report-1: One batch of reports is under way at a time; what comes meanwhile makes the next.
    - report-2: A batch goes at once if no job waits for a slot, if it is large, or if the worker stops.
    - report-3: Otherwise a report that others wait for goes with those that come within FLUSH_WINDOW_S.
    - report-4: Ends of committed jobs wait COMMITTED_WINDOW_S while more jobs are at hand than reports are pending.
    - report-5: A report that others wait for, and that came while a batch was under way, goes as soon as that is
      answered.

    A claim goes along with reports (C8) whose ends make the next jobs claimable:

    - along-1: All of them are acks: a failure or a release frees nothing that is claimable at once.
    - along-2: They end jobs of lanes, or they are under limits. For lanes alone only while there are no others to
      claim beside, because those do not have to wait for a report.
    - along-3: It asks for one more than is reported: if that one comes there may be others.
    - along-4: It never goes beside a claim on its own.

    A claim goes on its own:

    - claim-1: Something may have become claimable since the latest one, and there is room.
    - claim-2: Under limits, not beside a claim that goes along, and not while reports are on their way that take one
      along; for those it waits REPORTS_S.
    - claim-3: Under limits of their own (T8) it asks for no more jobs than there are free slots.
    - claim-4: After several empty claims in a row it rests a moment.
    - claim-5: One whose reply was lost is repeated as it is (C5), after the back-off, until it is stale.

    Without anything to claim the worker waits for jobs:

    - wait-1: Not while claims go along with reports, one soon after the other (FED_S), nor under limits while jobs in
      hand may be reported at once (REPORTS_S): to look for others costs more than it brings.
    - wait-2: It asks when the next job is due, and watches until then, POLL_S at most.
    - wait-3: It stops watching when a claim is wanted, or goes along with reports, or the worker stops. A claim on its
      own waits for the end of the watch, which notes what it has seen: a notification after the claim would be missed.

    And it ends:

    - end-1: When it stops, as soon as no claim or question is under way.
    - end-2: When it drains: a claim that was sent with nothing left in hand was empty, and no job is due soon. When
      the last job in hand has ended, it claims again first.
    """
    flush_at = _flush_at(state)
    if flush_at <= state.now:
        return Send(_claim_along(state))
    decision = _next_claim(state)
    if isinstance(decision, Wait) and flush_at < decision.until:
        return Wait(flush_at)
    return decision


def _flush_at(s: LoopState) -> float:
    """When the reports are to be sent; `inf`: there are none, or a batch is under way (report-1)."""
    if s.is_sending or s.is_broken or not (s.reports or s.has_starts):
        return math.inf
    is_urgent = s.urgent_since < math.inf
    wait_s = pacing.flush_in_s(s.reports, s.queued, is_urgent=is_urgent)
    if s.sends_all or wait_s == 0:
        return -math.inf
    if is_urgent:
        return min(s.urgent_since + wait_s, s.reports_since + pacing.COMMITTED_WINDOW_S)
    return s.reports_since + wait_s


def _claim_along(s: LoopState) -> int:
    """along-1 to along-4: how many jobs to claim along with the reports; 0: none."""
    if not s.takes_jobs or s.is_stopping or s.is_claiming or s.unanswered_since is not None:
        return 0
    if s.acks < s.reports or not s.acks:
        return 0
    if not _are_limited(s) and (s.has_more or not s.are_lanes):
        return 0
    return max(0, min(room(s, s.acks), s.acks + 1))


def _next_claim(s: LoopState) -> Decision:
    if not s.takes_jobs:
        return NEVER
    wants = s.must_claim or (s.drains and s.is_idle and not s.found_nothing)
    if s.is_watching:
        return StopWatching() if (wants or s.asked_along or s.is_stopping) and not s.is_watch_ending else NEVER
    if s.is_claiming or s.is_asking:
        return NEVER
    if s.is_stopping:
        return EndClaims()
    if s.unanswered_since is not None:
        if s.now < s.retry_at:
            return Wait(s.retry_at)
        is_stale = pacing.is_request_stale(s.unanswered_since, s.now, s.shortest_lease_s)
        return _claim(s) if is_stale else RepeatClaim()
    return _claim_when_due(s) if wants else _look(s)


def _claim_when_due(s: LoopState) -> Decision:
    if s.now < s.rest_until:
        return Wait(s.rest_until)
    if _are_limited(s):
        if s.asked_along:
            return NEVER
        if s.unreported and s.now < s.wanted_since + REPORTS_S:
            return Wait(s.wanted_since + REPORTS_S)
    return _claim(s)


def _claim(s: LoopState) -> Decision:
    size = room(s, -s.asked_along)
    return ClaimJobs(size) if size > 0 else NEVER


def _look(s: LoopState) -> Decision:
    if s.asked_along:
        return NEVER
    look_at = max(s.rest_until, s.fed_at + FED_S, s.granted_at + REPORTS_S if _are_limited(s) else -math.inf)
    if s.now < look_at:
        return Wait(look_at)
    if not s.is_asked:
        return AskWhenDue()
    if s.drains and s.found_nothing and s.is_due_known and (s.due_in_us is None or s.due_in_us > s.drain_wait_us):
        return EndClaims()
    return WatchForJobs(pacing.idle_s(s.due_in_us, POLL_S))


def _are_limited(s: LoopState) -> bool:
    return s.are_limited or s.has_limit


def room(s: LoopState, freed: int = 0) -> int:
    """How many more jobs may be held, when `freed` of those held are not any more."""
    if s.is_quiet:
        return 0
    most = pacing.claim_size(s.slots, s.prefetch, s.active, s.queued, s.unreported + s.set_aside - freed)
    if s.are_limited:
        most = min(most, pacing.free_slots(s.slots, s.active, s.queued))
    return min(most, CLAIM_MOST)


NEVER: Final = Wait(math.inf)
