"""A line in the log for each job that ended; when many end, one line a second that sums them up.

Jobs are named while at most 20 end in a second. After a second with more they are summed up: only counters, nothing is
formatted for a job. Failures are named even then, at most 20 a second. On the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import Any, Final

from leasemill.api.logs import DETAILS
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobState
from leasemill.operator.wording import counted, span
from leasemill.worker.run import Run, Stop

log = logging.getLogger("leasemill.worker")

WINDOW_S: Final = 1.0
NAMED_MOST: Final = 20
SAMPLES: Final = 512
"""Durations remembered for the median of a kind and an outcome, in a second."""
SUMS_SHOWN: Final = 8

_SUCCEEDED: Final = "succeeded"
_RETRIED: Final = "retried"
_FAILED: Final = "failed"
_GIVEN_BACK: Final = "given back"
_DIED: Final = "died"


@dataclass(slots=True)
class _Sum:
    """Jobs of one kind that ended in one way, within a second."""

    count: int = 0
    seconds: list[float] = field(default_factory=list)


class JobLog:
    """Logs how jobs ended."""

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._is_summing = False
        self._began_at = 0.0
        self._window_ended_at = 0.0
        self._ended = 0
        self._failures_named = 0
        self._has_unnamed_failures = False
        self._sums: dict[tuple[str, str], _Sum] = {}
        self._timer: asyncio.TimerHandle | None = None

    def succeeded(self, run: Run) -> None:
        found = self._sums.get((run.lease.job.kind, _SUCCEEDED))
        if found is not None and found.count >= SAMPLES:  # the way of most when there are many: two numbers
            found.count += 1
            self._ended += 1
            return
        if log.isEnabledFor(logging.INFO) and self._is_named(run, _SUCCEEDED):
            kind = run.lease.job.kind
            log.info("%s succeeded in %s", kind, _duration(run), extra=_fields(run, _SUCCEEDED))

    def released(self, run: Run, report: c.ReleaseReport, outcome: c.Released) -> None:
        """Its handler gave it back, or was stopped because the worker stops."""
        has_succeeded = outcome.state is JobState.SUCCEEDED
        how = _SUCCEEDED if has_succeeded else _GIVEN_BACK
        if not log.isEnabledFor(logging.INFO) or not self._is_named(run, how):
            return
        kind, fields = run.lease.job.kind, _fields(run, how)
        if has_succeeded:
            log.info("%s had committed, so it succeeded, in %s", kind, _duration(run), extra=fields)
        elif run.stop is Stop.SHUTDOWN:
            log.info("%s was released after %s: the worker is stopping", kind, _duration(run), extra=fields)
        else:
            wait = "" if report.delay_us is None else f" for {span(report.delay_us)}"
            log.info("%s was given back%s by its handler after %s", kind, wait, _duration(run), extra=fields)

    def failed(self, run: Run, outcome: c.Nacked, error: str) -> None:
        how = {JobState.READY: _RETRIED, JobState.FAILED: _FAILED}.get(outcome.state, _SUCCEEDED)
        raised = None if run.stop is not None else run.error
        run.error = None
        if not self._is_named(run, how):
            if self._failures_named == NAMED_MOST:
                self._has_unnamed_failures = True
                return
            self._failures_named += 1
        fields = _fields(run, how)
        first_line = error.partition("\n")[0]
        text = error if raised is None else first_line  # the traceback follows
        if how is _RETRIED:
            sentence = "job failed after %s and will be retried (retry %d of %d): %s"
            most = run.lease.terms.max_retries
            log.warning(sentence, _duration(run), outcome.retries, most, first_line, exc_info=raised, extra=fields)
        elif how is _FAILED:
            log.error("job failed for good after %s: %s", _duration(run), text, exc_info=raised, extra=fields)
        else:
            sentence = "job had committed, so it succeeded; its handler then failed: %s"
            log.warning(sentence, text, exc_info=raised, extra=fields)

    def died(self, run: Run, outcome: c.Died, cause: str) -> None:
        """The process of its handler ended without a report. Each has a line: there are never many in a second."""
        then = {JobState.READY: "it will run again", JobState.DEAD: "it is quarantined"}
        what = then.get(outcome.state, "it had committed, so it succeeded")
        fields = _fields(run, _DIED)
        log.error("job ended after %s, because %s: %s", _duration(run), cause, what, extra=fields)

    def close(self) -> None:
        """Log what is summed up so far."""
        if self._timer is not None:
            self._timer.cancel()
            self._end_window()

    # Windows of a second -----------------------------------------------------------------------------------------

    def _is_named(self, run: Run, how: str) -> bool:
        """Whether this end gets a line of its own; otherwise it is in the sum."""
        if self._timer is None:
            self._begin_window()
        self._ended += 1
        if not self._is_summing and self._ended <= NAMED_MOST:
            return True
        key = (run.lease.job.kind, how)
        found = self._sums.get(key)
        if found is None:
            found = self._sums[key] = _Sum()
        found.count += 1
        if found.count <= SAMPLES:
            found.seconds.append(run.ended_at - run.started_at)
        return False

    def _begin_window(self) -> None:
        now = time.monotonic()
        if now - self._window_ended_at > WINDOW_S:
            self._is_summing = False  # a while without any
        self._began_at = now
        self._timer = asyncio.get_running_loop().call_later(WINDOW_S, self._end_window)

    def _end_window(self) -> None:
        self._window_ended_at = time.monotonic()
        elapsed_s = max(self._window_ended_at - self._began_at, WINDOW_S)
        if self._sums:
            self._log_sums(elapsed_s)
        self._is_summing = self._ended / elapsed_s > NAMED_MOST
        self._timer = None
        self._ended = self._failures_named = 0
        self._has_unnamed_failures = False
        self._sums = {}

    def _log_sums(self, elapsed_s: float) -> None:
        largest = sorted(self._sums.items(), key=lambda item: (-item[1].count, item[0]))
        total = sum(one.count for _, one in largest)
        parts = [_part(kind, how, one) for (kind, how), one in largest[:SUMS_SHOWN]]
        if len(largest) > SUMS_SHOWN:
            parts.append(f"{sum(one.count for _, one in largest[SUMS_SHOWN:]):,} of other kinds")
        # What has no line of its own must not be lost to those who read warnings only.
        level = logging.WARNING if self._has_unnamed_failures else logging.INFO
        more = "" if self._is_summing else "more "
        log.log(
            level,
            "%s ended in %.1f s: %s",
            counted(total, f"{more}job"),
            elapsed_s,
            ", ".join(parts),
            extra={
                "worker": self._worker_id,
                DETAILS: {
                    "jobs": total,
                    "seconds": round(elapsed_s, 3),
                    "ended": [
                        {"kind": kind, "outcome": how, "count": one.count, "p50_ms": round(_median(one) * 1000, 3)}
                        for (kind, how), one in largest[:SUMS_SHOWN]
                    ],
                },
            },
        )


def _part(kind: str, how: str, one: _Sum) -> str:
    return f"{one.count:,} {kind} {how} (p50 {span(int(_median(one) * SECOND))})"


def _median(one: _Sum) -> float:
    return sorted(one.seconds)[len(one.seconds) // 2]


def _seconds(run: Run) -> float:
    return run.ended_at - run.started_at if run.started_at else 0.0


def _duration(run: Run) -> str:
    return span(int(_seconds(run) * SECOND))


def _fields(run: Run, how: str) -> dict[str, Any]:
    return {**run.log_fields, DETAILS: {"outcome": how, "ms": round(_seconds(run) * 1000, 3)}}
