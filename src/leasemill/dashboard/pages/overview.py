"""Overview: rates, backlog, how long jobs wait and run, and what goes wrong. Reads nothing but the shared sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from leasemill.dashboard.charts import Chart, Series, chart, window_s
from leasemill.dashboard.history import SPANS, Dot, History, Span
from leasemill.dashboard.page_types import Page, PageContext
from leasemill.dashboard.pages.queues import QueueOnPage, rows_of
from leasemill.dashboard.sampler import Sample
from leasemill.kernel.commands import QueueView
from leasemill.kernel.model import JobState, QueueMode
from leasemill.operator.wording import counted, listed

QUEUES_LISTED: Final = 8
QUEUES_NAMED: Final = 3
"""The words for it in a sentence about several queues."""
MINUTE_S: Final = 60


class FlowNow(Struct, frozen=True):
    """Numbers per second, or per minute where the name says so; None if not known yet."""

    arrived: float | None
    left: float | None
    expired_a_minute: float | None
    refused_a_minute: float | None


class ConcernOnPage(Struct, frozen=True):
    """Something that an operator should look at now, and the page that shows it."""

    tone: str
    sentence: str
    path: str
    fields: dict[str, str] = {}


def read(context: PageContext) -> Mapping[str, Any]:
    history = context.sampler.history
    span = next((one for one in SPANS if one.name == context.asked("span")), SPANS[0])
    sample = context.sample
    return {
        "spans": SPANS,
        "span": span,
        "flow": _flow(history),
        "charts": [] if sample is None else _charts(history, span, sample.at),
        "concerns": [] if sample is None else concerns(sample),
        "busiest": [] if sample is None else _busiest(sample),
    }


def _flow(history: History) -> FlowNow:
    return FlowNow(
        history.recent_rate(lambda one: one.arrived, 15),
        history.recent_rate(lambda one: one.left, 15),
        _a_minute(history.recent_rate(lambda one: one.expired)),
        _a_minute(history.recent_rate(lambda one: one.refused)),
    )


def _a_minute(rate: float | None) -> float | None:
    return None if rate is None else MINUTE_S * rate


def _charts(history: History, span: Span, now: int) -> list[Chart]:
    seconds = window_s(span, history.known_s(span, now))
    return [
        chart(
            "Jobs in and out",
            "per second",
            seconds,
            now,
            [
                Series("in", "in", history.rates(span, lambda one: one.arrived)),
                Series("out", "out", history.rates(span, lambda one: one.left)),
            ],
        ),
        chart(
            "Waiting", "jobs", seconds, now, [Series("waiting", "ready", history.levels(span, lambda one: one.waiting))]
        ),
        chart(
            "Running",
            "jobs",
            seconds,
            now,
            [Series("running", "leased", history.levels(span, lambda one: one.running))],
        ),
        chart(
            "Expired and refused",
            "per minute",
            seconds,
            now,
            [
                Series("expired", "warned", _minutes(history.rates(span, lambda one: one.expired))),
                Series("refused", "failed", _minutes(history.rates(span, lambda one: one.refused))),
            ],
        ),
    ]


def _minutes(dots: list[Dot]) -> list[Dot]:
    return [Dot(dot.at, _a_minute(dot.value)) for dot in dots]


def concerns(sample: Sample) -> list[ConcernOnPage]:
    """Return what is wrong now, as far as the sample shows it, the worst first."""
    silent = sum(one.is_stale for one in sample.workers)
    stuck = sum(len(one.record.stuck) for one in sample.workers if not one.is_stale)
    found = []
    if silent:
        has = "has" if silent == 1 else "have"
        found.append(ConcernOnPage("failed", f"{counted(silent, 'worker')} {has} no heartbeat", "/workers"))
    if stuck:
        found.append(ConcernOnPage("failed", f"{counted(stuck, 'slot')} stuck: handlers do not return", "/workers"))
    rows = sorted(rows_of(sample), key=lambda row: (-row.waiting, row.view.name))
    due = [row for row in rows if row.due_at is not None and row.view.mode is not QueueMode.ACQUIRE]
    found += _of_queues("failed", "No worker", [row for row in due if not row.workers and not row.view.is_paused])
    return found + _of_queues("warned", "Paused", [row for row in rows if row.view.is_paused])


def _of_queues(tone: str, what: str, rows: list[QueueOnPage]) -> list[ConcernOnPage]:
    """Return one line for any number of queues."""
    if not rows:
        return []
    waiting = sum(row.waiting for row in rows)
    names = [row.view.name for row in rows]
    sentence = f"{what}: {listed(names, QUEUES_NAMED)}" + (f" ({counted(waiting, 'job')} waiting)" if waiting else "")
    if len(rows) == 1:
        return [ConcernOnPage(tone, sentence, "/queue", {"name": names[0]})]
    return [ConcernOnPage(tone, sentence, "/queues", {"order": "waiting"})]


def _busiest(sample: Sample) -> list[QueueView]:
    def weight(queue: QueueView) -> int:
        return queue.counts[JobState.READY] + queue.counts[JobState.LEASED]

    return sorted(sample.queues, key=lambda queue: (-weight(queue), queue.name))[:QUEUES_LISTED]


PAGE: Final = Page(
    "overview", "/", "Overview", "overview.html", read, section="Now", is_sampled=True, is_estimated=True
)
