"""A job's life drawn to scale: each attempt a row, from its claim to its end, with what happened in it. Pure.

Places are percentages of the picture's width. A store keeps the end of a lease and no list of its extensions. An
extension grants a full lease from its own time (L9), so when the latest one was follows from the end: it is drawn.
Earlier ones are not known, and nothing is drawn for them.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from leasemill.kernel.model import NEVER, SECOND, AbortReason, Execution, ExecutionStatus, Job, Refusal, Verb
from leasemill.operator.wording import instant, span

LEAST_US: Final = 1_000
SHOWN: Final = 30
"""So many attempts are drawn: if there are more, the first and the latest."""
NICE_S: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_800, 3_600),
    *(7_200, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000, 31_536_000),
)


class Bar(Struct, frozen=True):
    """A stretch of a row; `tone` names its colour in the style sheet."""

    tone: str
    left: float
    width: float
    title: str


class Sign(Struct, frozen=True):
    """Something that happened at one moment."""

    shape: str
    tone: str
    left: float
    title: str


class AttemptRow(Struct, frozen=True):
    execution: Execution
    bars: list[Bar]
    signs: list[Sign]
    outcome: str
    tone: str
    ran_us: int | None


class Timeline(Struct, frozen=True):
    rows: list[AttemptRow]
    waits: list[Bar]
    ticks: list[tuple[float, str]]
    dropped: int
    """The number of attempts that are not drawn."""
    began_at: int
    ended_at: int

    @property
    def has_extension(self) -> bool:
        return any(extended_us(row.execution) for row in self.rows)

    @property
    def drawn(self) -> frozenset[str]:
        """Return the tones of bars and the shapes of signs that can be seen, for the picture's key."""
        bars = (bar.tone for row in self.rows for bar in row.bars if bar.width)
        return frozenset(bars) | {sign.shape for row in self.rows for sign in row.signs}


class Scale(Struct, frozen=True):
    began_at: int
    ended_at: int

    def offset(self, at: int) -> float:
        share = (at - self.began_at) / max(LEAST_US, self.ended_at - self.began_at)
        return round(100 * min(1.0, max(0.0, share)), 3)


def timeline(job: Job, now: int) -> Timeline:
    shown = job.executions if len(job.executions) <= SHOWN else (job.executions[0], *job.executions[1 - SHOWN :])
    scale = Scale(job.created_at, _end(job, now))
    rows = [_row(job, execution, scale, now) for execution in shown]
    dropped = job.attempt - len(shown)
    return Timeline(rows, _waits(job, scale, now), _ticks(scale), dropped, scale.began_at, scale.ended_at)


def _end(job: Job, now: int) -> int:
    """Return when the picture ends: at the latest event, or now while the job has not ended."""
    known = [job.updated_at, job.created_at + LEAST_US]
    known += [refusal.at for refusal in job.refusals]
    for one in job.executions:
        known += [at for at in (one.finished_at, one.started_at, one.leased_at) if at is not None]
        if one.finished_at is None:
            known.append(now if one.expires_at == NEVER else max(now, one.expires_at))
    if job.state == "ready":
        known.append(max(now, job.available_at))
    return max(known)


def _row(job: Job, one: Execution, scale: Scale, now: int) -> AttemptRow:
    end = one.finished_at if one.finished_at is not None else now
    bars = []
    if one.expires_at != NEVER:
        bars.append(_bar(scale, "held", one.leased_at, one.expires_at, f"lease until {instant(one.expires_at)}"))
    if one.started_at is not None:
        bars.append(_bar(scale, "taken", one.leased_at, one.started_at, "claimed, not started"))
        ran = "running" if one.finished_at is None else "ran"
        bars.append(_bar(scale, tone_of(one), one.started_at, end, f"{ran} for {span(max(0, end - one.started_at))}"))
    else:
        bars.append(_bar(scale, tone_of(one, "taken"), one.leased_at, end, "claimed, not started"))
    signs = [Sign("tick", "mark", scale.offset(one.leased_at), f"leased {instant(one.leased_at)}")]
    if one.started_at is not None:
        signs.append(Sign("tick", "mark", scale.offset(one.started_at), f"started {instant(one.started_at)}"))
    extended_at = last_extended_at(one)
    if extended_at is not None:
        title = f"last extended {instant(extended_at)}, until {instant(one.expires_at)}"
        signs.append(Sign("chevron", "mark", scale.offset(extended_at), title))
    if one.committed_at is not None:
        signs.append(
            Sign("diamond", "succeeded", scale.offset(one.committed_at), f"committed {instant(one.committed_at)}")
        )
    if one.finished_at is not None:
        title = f"{outcome_of(one)} {instant(one.finished_at)}"
        signs.append(Sign("dot", tone_of(one), scale.offset(one.finished_at), title))
    signs += [_refused(refusal, scale) for refusal in job.refusals if refusal.attempt == one.attempt]
    ran_us = None if one.started_at is None else max(0, end - one.started_at)
    return AttemptRow(one, bars, signs, outcome_of(one), tone_of(one), ran_us)


def _bar(scale: Scale, tone: str, begin: int, end: int, title: str) -> Bar:
    left = scale.offset(begin)
    return Bar(tone, left, round(max(0.0, scale.offset(end) - left), 3), title)


def _refused(refusal: Refusal, scale: Scale) -> Sign:
    title = f"{refusal.verb.value} refused {instant(refusal.at)}: lease {refusal.reason.value}"
    return Sign("cross", "failed", scale.offset(refusal.at), title)


def _waits(job: Job, scale: Scale, now: int) -> list[Bar]:
    """Return when no worker had it: from the enqueue, and from the end of each attempt, until the next claim."""
    begins = [job.created_at, *(one.finished_at for one in job.executions)]
    ends: list[int | None] = [*(one.leased_at for one in job.executions), now if job.state == "ready" else None]
    return [
        _bar(scale, "waited", begin, end, f"no worker had it for {span(end - begin)}")
        for begin, end in zip(begins, ends, strict=True)
        if begin is not None and end is not None and end > begin
    ]


def _ticks(scale: Scale, count: int = 5) -> list[tuple[float, str]]:
    total_s = max(LEAST_US, scale.ended_at - scale.began_at) / SECOND
    step_s = next((nice for nice in NICE_S if total_s / nice <= count), NICE_S[-1])
    times = int(total_s / step_s)
    return [
        (round(100 * index * step_s / total_s, 3), _after(index * step_s)) for index in range(times + 1) if times < 50
    ]


def _after(seconds: float) -> str:
    if seconds == 0:
        return "0"
    us = round(seconds * SECOND)
    return f"+{span(us).replace('.0 ', ' ')}"


def extended_us(one: Execution) -> int:
    """Return how far extensions have moved a lease's end; 0 if not at all, or it has no end."""
    if one.expires_at == NEVER:
        return 0
    return max(0, one.expires_at - one.leased_at - one.terms.lease_ttl_us)


def last_extended_at(one: Execution) -> int | None:
    """Return when its lease was extended last; None if never."""
    return one.expires_at - one.terms.lease_ttl_us if extended_us(one) else None


def tone_of(one: Execution, unended: str = "leased") -> str:
    match one.reason:
        case AbortReason.FAILED:
            return "failed"
        case AbortReason.EXPIRED | AbortReason.DIED:
            return "warned"
        case AbortReason.RELEASED | AbortReason.CANCELLED:
            return "cancelled"
        case None:
            is_committed = one.status in (ExecutionStatus.COMMITTED, ExecutionStatus.DONE)
            return "succeeded" if is_committed else unended


def outcome_of(one: Execution) -> str:
    if one.reason is not None:
        is_for_good = one.is_final and one.reason is not AbortReason.CANCELLED
        return one.reason.value + (" for good" if is_for_good else "")
    if one.status is ExecutionStatus.DONE:
        by = "" if one.ended_by is None or one.ended_by is Verb.ACK else f" (by {one.ended_by.value})"
        return f"done{by}"
    return one.status.value
