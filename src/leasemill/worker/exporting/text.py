"""Prometheus's text format, version 0.0.4. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

from leasemill.worker.exporting.catalogue import METRICS, Metric
from leasemill.worker.exporting.samples import Labels, Samples

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def exposition(samples: Samples, metrics: Iterable[Metric] = METRICS.values()) -> str:
    """Every metric, those without a sample too: whoever looks for a name finds what it means."""
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
