"""The filter that names the jobs of a command.

A command looks at a bounded number of jobs and returns where to go on, so that a filter that fits few jobs never makes
one long step (O6).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from msgspec import Struct

from leasemill.kernel.bounds import check_headers
from leasemill.kernel.model import UNSUCCESSFUL_STATES, Job, JobState
from leasemill.kernel.state import State
from leasemill.kernel.transitions.unique import unique_of

__all__ = ["HeldBack", "JobFilter", "Operated"]

JOBS_LOOKED_AT: Final = 10_000


class JobFilter(Struct, frozen=True):
    """Selects jobs; every field that is set must match."""

    job_ids: tuple[str, ...] | None = None
    queue: str | None = None
    kind: str | None = None
    lane: str | None = None
    states: frozenset[JobState] | None = None
    updated_before: int | None = None
    updated_after: int | None = None
    error_contains: str | None = None
    group: str | None = None
    unique_key: str | None = None
    headers: dict[str, str] | None = None
    """Jobs that have all of these headers, with these values."""


def check_filter(wanted: JobFilter) -> None:
    if wanted.headers:
        check_headers(wanted.headers)


class HeldBack(Struct, frozen=True):
    """A job that was not redriven: another one holds its unique key (U4)."""

    job_id: str
    holder_id: str


class Operated(Struct, frozen=True):
    """The jobs an operator's command changed; `after` continues it, None: all were looked at."""

    job_ids: tuple[str, ...]
    after: int | None
    held_back: tuple[HeldBack, ...] = ()


def fits(job: Job, wanted: JobFilter) -> bool:
    spec = job.spec
    return (
        (wanted.job_ids is None or spec.id in wanted.job_ids)
        and (wanted.queue is None or spec.queue == wanted.queue)
        and (wanted.kind is None or spec.kind == wanted.kind)
        and (wanted.lane is None or spec.lane == wanted.lane)
        and (wanted.states is None or job.state in wanted.states)
        and (wanted.updated_before is None or job.updated_at < wanted.updated_before)
        and (wanted.updated_after is None or job.updated_at >= wanted.updated_after)
        and (wanted.error_contains is None or wanted.error_contains in (last_error(job) or ""))
        and (wanted.group is None or (spec.rules is not None and spec.rules.group == wanted.group))
        and (wanted.unique_key is None or ((unique := unique_of(spec)) is not None and unique.key == wanted.unique_key))
        and (not wanted.headers or (spec.headers is not None and wanted.headers.items() <= spec.headers.items()))
    )


def last_error(job: Job) -> str | None:
    """The latest error of a job, of whichever attempt: what filters look at."""
    return next((execution.error for execution in reversed(job.executions) if execution.error is not None), None)


def fitting(
    state: State,
    wanted: JobFilter,
    states: frozenset[JobState] | None,
    limit: int,
    after: int,
    *,
    newest_first: bool = False,
) -> tuple[list[Job], int | None]:
    """Return at most `limit` jobs that fit, and where to go on."""
    found: list[Job] = []
    candidates = _candidates(state, wanted, states, after, newest_first)
    for looked_at, job in enumerate(islice(candidates, JOBS_LOOKED_AT), 1):
        if (states is None or job.state in states) and fits(job, wanted):
            found.append(job)
        if len(found) == limit or looked_at == JOBS_LOOKED_AT:
            return found, job.seq
    return found, None


def _candidates(
    state: State, wanted: JobFilter, states: frozenset[JobState] | None, after: int, newest_first: bool
) -> Iterator[Job]:
    if wanted.job_ids is not None:
        known = (state.look(job_id) for job_id in dict.fromkeys(wanted.job_ids))
        there = sorted((job for job in known if job is not None), key=lambda job: job.seq, reverse=newest_first)
        return (job for job in there if is_further(job.seq, after, newest_first))
    narrowed = states if wanted.states is None else wanted.states
    order = state.unsuccessful if narrowed is not None and narrowed <= UNSUCCESSFUL_STATES else state.listing
    if newest_first:
        return order.before(after or state.seq + 1)
    return order.after(after)


def is_further(seq: int, after: int, newest_first: bool) -> bool:
    """Return True if a reading that has come as far as `after` (0: it begins) still has this job before it."""
    return after == 0 or (seq < after if newest_first else seq > after)
