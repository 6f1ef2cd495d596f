"""Numbers by metric and labels, and how Prometheus's text format (version 0.0.4) writes them. Pure.

Code that shares them between threads holds a lock.

Kinds and queues are named by users, so their number is bounded here: what comes after the first `MOST_VALUES` of a
label is counted as `other`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, TypeAlias

from leasemill.worker.prometheus.catalogue import METRICS, Metric

Labels: TypeAlias = tuple[str, ...]
Values: TypeAlias = dict[str, dict[Labels, float]]
Histograms: TypeAlias = dict[str, dict[Labels, list[float]]]
"""Each row has the count of every bucket, not added up, the count above the last bound, and the sum of the values."""

MOST_VALUES: Final = 200
BOUNDED: Final = frozenset({"kind", "queue"})
OTHER: Final = "other"

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(slots=True)
class Samples:
    """Values and histograms, by the metric's name."""

    values: Values = field(default_factory=dict)
    histograms: Histograms = field(default_factory=dict)
    _known: dict[str, set[str]] = field(default_factory=dict)

    def add(self, metric: Metric, labels: Labels = (), by: float = 1) -> None:
        rows = self.values.setdefault(metric.name, {})
        if labels not in rows:
            labels = self._bounded(metric, labels)
        rows[labels] = rows.get(labels, 0) + by if metric.is_summed else max(rows.get(labels, by), by)

    def observe(self, metric: Metric, labels: Labels, value: float) -> None:
        row = self._row(metric, labels)
        row[bisect_left(metric.buckets, value)] += 1
        row[-1] += value

    def observe_all(self, metric: Metric, labels: Labels, values: list[float]) -> None:
        """Observe many values at once. They are sorted, so one search for each bound counts them."""
        values.sort()
        row, below = self._row(metric, labels), 0
        for index, bound in enumerate(metric.buckets):
            up_to = bisect_right(values, bound, below)
            row[index] += up_to - below
            below = up_to
        row[-2] += len(values) - below
        row[-1] += sum(values)

    def merge(self, others: Samples) -> None:
        """Add all the other samples to these."""
        for name, rows in others.values.items():
            for labels, value in rows.items():
                self.add(METRICS[name], labels, value)
        for name, histogram in others.histograms.items():
            for labels, theirs in histogram.items():
                row = self._row(METRICS[name], labels)
                for index, count in enumerate(theirs):
                    row[index] += count

    def copy(self) -> Samples:
        return Samples(
            {name: dict(rows) for name, rows in self.values.items()},
            {name: {labels: [*row] for labels, row in rows.items()} for name, rows in self.histograms.items()},
            {name: set(values) for name, values in self._known.items()},
        )

    def since(self, earlier: Samples) -> Samples:
        """Return what was added to these counters since `earlier`. Rows that did not change are left out."""
        found = Samples()
        for name, rows in self.values.items():
            before = earlier.values.get(name, {})
            changed = {at: value - before.get(at, 0) for at, value in rows.items() if before.get(at) != value}
            if changed:
                found.values[name] = changed
        for name, histogram in self.histograms.items():
            earlier_rows = earlier.histograms.get(name, {})
            changed_rows = {
                at: [one - other for one, other in zip(row, earlier_rows.get(at, [0.0] * len(row)), strict=True)]
                for at, row in histogram.items()
                if earlier_rows.get(at) != row
            }
            if changed_rows:
                found.histograms[name] = changed_rows
        return found

    def _row(self, metric: Metric, labels: Labels) -> list[float]:
        rows = self.histograms.setdefault(metric.name, {})
        row = rows.get(labels)
        if row is None:
            row = rows.setdefault(self._bounded(metric, labels), [0.0] * (len(metric.buckets) + 2))
        return row

    def _bounded(self, metric: Metric, labels: Labels) -> Labels:
        return tuple(
            value if name not in BOUNDED else self._known_or_other(name, value)
            for name, value in zip(metric.labels, labels, strict=True)
        )

    def _known_or_other(self, name: str, value: str) -> str:
        known = self._known.setdefault(name, set())
        if value in known:
            return value
        if len(known) >= MOST_VALUES:
            return OTHER
        known.add(value)
        return value


def encoded(samples: Samples) -> dict[str, Any]:
    """Return the samples as lists that JSON can hold."""
    return {
        "values": _listed(samples.values),
        "histograms": _listed(samples.histograms),
    }


def decoded(message: Mapping[str, Any]) -> Samples:
    """Read samples again. Those that this version does not know, from a process with newer code, are left out."""
    found = Samples()
    for name, labels, value in message["values"]:
        if _is_known(name, labels):
            found.values.setdefault(name, {})[tuple(labels)] = value
    for name, labels, row in message["histograms"]:
        if _is_known(name, labels) and len(row) == len(METRICS[name].buckets) + 2:
            found.histograms.setdefault(name, {})[tuple(labels)] = row
    return found


def _is_known(name: str, labels: list[str]) -> bool:
    return name in METRICS and len(labels) == len(METRICS[name].labels)


def _listed(rows_by_name: Mapping[str, Mapping[Labels, object]]) -> list[list[object]]:
    return [[name, list(labels), value] for name, rows in rows_by_name.items() for labels, value in rows.items()]


def exposition(samples: Samples, metrics: Iterable[Metric] = METRICS.values()) -> str:
    """Write the text of an endpoint. Metrics without a sample are in it too, so that a name is explained."""
    return "".join(f"{line}\n" for metric in metrics for line in _lines(metric, samples))


def _lines(metric: Metric, samples: Samples) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} {metric.type}"
    for labels, value in sorted(samples.values.get(metric.name, {}).items()):
        yield f"{metric.name}{_labelled(metric, labels)} {_number(value)}"
    for labels, row in sorted(samples.histograms.get(metric.name, {}).items()):
        *counts, total = row
        bounds = [*map(repr, metric.buckets), "+Inf"]
        cumulated = list(accumulate(counts))
        for bound, count in zip(bounds, cumulated, strict=True):
            yield f"{metric.name}_bucket{_labelled(metric, labels, bound)} {_number(count)}"
        yield f"{metric.name}_sum{_labelled(metric, labels)} {_number(total)}"
        yield f"{metric.name}_count{_labelled(metric, labels)} {_number(cumulated[-1])}"


def _labelled(metric: Metric, values: Labels, bound: str | None = None) -> str:
    pairs = [f'{name}="{value.translate(_ESCAPED)}"' for name, value in zip(metric.labels, values, strict=True)]
    if bound is not None:
        pairs.append(f'le="{bound}"')
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
