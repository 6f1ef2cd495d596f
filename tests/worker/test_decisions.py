"""What the worker's loop does next: a row for each rule of `decisions.next`, without a clock, a store or a loop."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import product
from typing import Any, Final

import pytest

from leasemill.worker import pacing
from leasemill.worker.decisions import (
    CLAIM_MOST,
    FED_S,
    NEVER,
    POLL_S,
    REPORTS_S,
    AskWhenDue,
    ClaimJobs,
    Decision,
    EndClaims,
    LoopState,
    RepeatClaim,
    Send,
    StopWatching,
    Wait,
    WatchForJobs,
    next,  # noqa: A004  (the loop's question: what next?)
)

NOW: Final = 100.0
IDLE: Final = LoopState(now=NOW, slots=10, is_asked=True, is_due_known=True, is_watching=True)
"""Nothing is held, and the store is being watched."""
WANTS: Final = LoopState(now=NOW, slots=10, must_claim=True, wanted_since=NOW)
"""Something may be claimable, and nothing is held."""
DONE: Final = LoopState(
    now=NOW, slots=10, active=5, unreported=3, reports=3, acks=3, reports_since=NOW, urgent_since=NOW
)
"""Three of eight jobs have ended, and nothing waits for a slot."""
AHEAD: Final[dict[str, Any]] = {"queued": 20, "prefetch": 30, "active": 10}
"""All slots are taken, and jobs wait for them."""
LIMITED: Final[dict[str, Any]] = {"are_limited": True, "fed_at": -math.inf}
DRAINED: Final[dict[str, Any]] = {"drains": True, "is_idle": True, "found_nothing": True}

ROWS: Final[list[tuple[str, LoopState, dict[str, Any], Decision]]] = [
    # Reports
    ("report-1", DONE, {"is_sending": True}, AskWhenDue()),
    ("report-1", DONE, {"is_sending": True, "is_watching": True}, NEVER),
    ("report-1", DONE, {"is_broken": True, "is_watching": True}, NEVER),
    ("report-2", DONE, {}, Send(0)),
    ("report-2", DONE, AHEAD | {"reports": pacing.FLUSH_SIZE, "urgent_since": math.inf}, Send(0)),
    ("report-2", DONE, AHEAD | {"sends_all": True, "urgent_since": math.inf}, Send(0)),
    ("report-2", IDLE, {"sends_all": True}, NEVER),
    ("report-2", IDLE, {"has_starts": True, "urgent_since": NOW, "reports_since": NOW}, Send(0)),
    ("report-3", DONE, AHEAD | {"is_watching": True}, Wait(NOW + pacing.FLUSH_WINDOW_S)),
    ("report-3", DONE, AHEAD | {"urgent_since": NOW - 1}, Send(0)),
    ("report-3", DONE, AHEAD | {"reports_since": NOW - 1}, Send(0)),
    (
        "report-4",
        DONE,
        AHEAD | {"urgent_since": math.inf, "is_watching": True},
        Wait(NOW + pacing.COMMITTED_WINDOW_S),
    ),
    ("report-4", DONE, AHEAD | {"urgent_since": math.inf, "queued": 3}, Send(0)),
    ("report-4", DONE, AHEAD | {"urgent_since": math.inf, "reports_since": NOW - 1}, Send(0)),
    ("report-5", DONE, AHEAD | {"urgent_since": -math.inf}, Send(0)),
    # Claims that go along
    ("along-1", DONE, {"are_lanes": True}, Send(4)),
    ("along-1", DONE, {"are_lanes": True, "acks": 2}, Send(0)),
    ("along-1", DONE, {"are_lanes": True, "reports": 0, "acks": 0, "has_starts": True}, Send(0)),
    ("along-2", DONE, {"are_lanes": True, "has_more": True}, Send(0)),
    ("along-2", DONE, LIMITED, Send(4)),
    ("along-2", DONE, {"has_limit": True, "has_more": True}, Send(4)),
    ("along-3", DONE, {"are_lanes": True, "active": 7}, Send(3)),
    ("along-3", DONE, {"are_lanes": True, "unreported": 8}, Send(0)),  # what came meanwhile takes the room
    ("along-3", DONE, {"are_lanes": True, "set_aside": 5}, Send(0)),
    ("along-3", DONE, {"are_lanes": True, "is_quiet": True}, Send(0)),
    ("along-4", DONE, {"are_lanes": True, "is_claiming": True}, Send(0)),
    ("along-4", DONE, {"are_lanes": True, "unanswered_since": NOW - 1, "retry_at": NOW + 1}, Send(0)),
    ("along-4", DONE, {"are_lanes": True, "is_stopping": True}, Send(0)),
    ("along-4", DONE, {"are_lanes": True, "takes_jobs": False}, Send(0)),
    # Claims on their own
    ("claim-1", WANTS, {}, ClaimJobs(10)),
    ("claim-1", WANTS, {"prefetch": 5_000}, ClaimJobs(CLAIM_MOST)),
    ("claim-1", WANTS, {"active": 7, "unreported": 2, "is_sending": True}, ClaimJobs(1)),
    ("claim-1", WANTS, {"active": 8, "unreported": 2, "is_sending": True}, NEVER),
    ("claim-1", WANTS, {"asked_along": 4, "is_sending": True}, ClaimJobs(6)),
    ("claim-1", WANTS, {"is_quiet": True}, NEVER),
    ("claim-1", WANTS, {"is_claiming": True}, NEVER),
    ("claim-1", WANTS, {"is_asking": True}, NEVER),
    ("claim-1", WANTS, {"takes_jobs": False}, NEVER),
    ("claim-2", WANTS, {"has_limit": True, "asked_along": 1, "is_sending": True}, NEVER),
    ("claim-2", WANTS, LIMITED | {"unreported": 1, "is_sending": True}, Wait(NOW + REPORTS_S)),
    ("claim-2", WANTS, LIMITED | {"unreported": 1, "is_sending": True, "wanted_since": NOW - REPORTS_S}, ClaimJobs(9)),
    ("claim-2", WANTS, LIMITED | {"unreported": 1, "is_sending": True, "wanted_since": -math.inf}, ClaimJobs(9)),
    ("claim-2", WANTS, LIMITED, ClaimJobs(10)),
    ("claim-3", WANTS, LIMITED | {"prefetch": 100, "active": 4}, ClaimJobs(6)),
    ("claim-3", WANTS, {"has_limit": True, "prefetch": 0, "active": 4}, ClaimJobs(6)),
    ("claim-3", DONE, LIMITED | {"active": 8}, Send(2)),
    ("claim-4", WANTS, {"rest_until": NOW + 0.01}, Wait(NOW + 0.01)),
    ("claim-5", WANTS, {"unanswered_since": NOW - 1, "retry_at": NOW + 0.5, "shortest_lease_s": 30}, Wait(NOW + 0.5)),
    ("claim-5", WANTS, {"unanswered_since": NOW - 1, "retry_at": NOW, "shortest_lease_s": 30}, RepeatClaim()),
    ("claim-5", WANTS, {"unanswered_since": NOW - 16, "retry_at": NOW, "shortest_lease_s": 30}, ClaimJobs(10)),
    # Waiting for jobs
    ("wait-1", IDLE, {"is_watching": False, "asked_along": 1, "is_sending": True}, NEVER),
    ("wait-1", IDLE, {"is_watching": False, "fed_at": NOW - 0.001}, Wait(NOW - 0.001 + FED_S)),
    ("wait-1", IDLE, {"is_watching": False, "has_limit": True, "granted_at": NOW - 0.01}, Wait(NOW - 0.01 + REPORTS_S)),
    ("wait-1", IDLE, {"is_watching": False, "granted_at": NOW - 0.01}, WatchForJobs(POLL_S)),
    ("wait-2", IDLE, {"is_watching": False, "is_asked": False}, AskWhenDue()),
    ("wait-2", IDLE, {"is_watching": False, "due_in_us": 250_000}, WatchForJobs(0.25)),
    ("wait-2", IDLE, {"is_watching": False, "due_in_us": 60_000_000}, WatchForJobs(POLL_S)),
    ("wait-2", IDLE, {}, NEVER),
    ("wait-3", IDLE, {"must_claim": True}, StopWatching()),
    ("wait-3", IDLE, {"must_claim": True, "is_watch_ending": True}, NEVER),
    ("wait-3", IDLE, {"asked_along": 1, "is_sending": True}, StopWatching()),
    ("wait-3", IDLE, {"is_stopping": True}, StopWatching()),
    # Ends
    ("end-1", WANTS, {"is_stopping": True}, EndClaims()),
    ("end-1", WANTS, {"is_stopping": True, "is_claiming": True}, NEVER),
    ("end-1", WANTS, {"is_stopping": True, "unanswered_since": NOW, "retry_at": NOW + 1}, EndClaims()),
    ("end-1", DONE, {"is_stopping": True}, Send(0)),
    ("end-2", IDLE, DRAINED | {"is_watching": False}, EndClaims()),
    (
        "end-2",
        IDLE,
        DRAINED | {"is_watching": False, "due_in_us": 500_000, "drain_wait_us": 600_000},
        WatchForJobs(0.5),
    ),
    ("end-2", IDLE, DRAINED | {"is_watching": False, "due_in_us": 2_000_000, "drain_wait_us": 1_000_000}, EndClaims()),
    ("end-2", IDLE, DRAINED | {"is_watching": False, "is_due_known": False}, WatchForJobs(POLL_S)),
    ("end-2", IDLE, {"drains": True, "is_watching": False}, WatchForJobs(POLL_S)),
    ("end-2", IDLE, DRAINED | {"found_nothing": False}, StopWatching()),
    ("end-2", IDLE, DRAINED | {"found_nothing": False, "is_watching": False}, ClaimJobs(10)),
]


@pytest.mark.parametrize(
    ("state", "changes", "decision"),
    [row[1:] for row in ROWS],
    ids=[f"{row[0]}-{number}" for number, row in enumerate(ROWS)],
)
def test_the_next_thing_to_do(state: LoopState, changes: dict[str, Any], decision: Decision) -> None:
    assert next(replace(state, **changes)) == decision


def test_every_rule_has_a_row() -> None:
    assert {rule for rule, *_ in ROWS} == set(re.findall(r"^    - ([a-z]+-\d): ", next.__doc__ or "", re.MULTILINE))


def test_in_no_state_is_more_claimed_than_there_is_room_for() -> None:
    for active, queued, unreported, along, limited in product(range(6), range(8), range(8), range(3), (False, True)):
        state = LoopState(
            slots=5,
            active=active,
            queued=queued,
            prefetch=4,
            unreported=unreported,
            asked_along=along,
            are_limited=limited,
            must_claim=True,
        )
        decision = next(state)
        if isinstance(decision, ClaimJobs):
            assert decision.size + along + active + queued + unreported <= 5 + 4


def test_in_no_state_does_the_loop_wait_for_nothing_while_it_could_do_something() -> None:
    """Waiting for ever is right only while a call is under way, whose answer makes a turn."""
    facts = (False, True)
    for must, watching, asking, claiming, sending, limited, reports in product(facts, repeat=7):
        state = LoopState(
            now=NOW,
            slots=3,
            must_claim=must,
            is_watching=watching,
            is_asking=asking,
            is_claiming=claiming,
            is_sending=sending,
            are_limited=limited,
            reports=int(reports),
            unreported=int(reports),
            acks=int(reports),
            reports_since=NOW,
            urgent_since=NOW,
        )
        if next(state) == NEVER:
            assert watching or asking or claiming or sending


def test_a_decision_changes_nothing() -> None:
    for _, state, changes, _ in ROWS:
        before = replace(state, **changes)
        after = replace(before)
        next(after)
        assert after == before
