"""Reads an endpoint as Prometheus does."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from leasemill.worker.prometheus.samples import CONTENT_TYPE


class Scraped:
    """What an endpoint exported, by name and labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.items())
                assert key not in self._values, f"{key} is there twice"
                self._values[key] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of the samples that have these labels; 0: there is none."""
        return sum(value for value, _ in self.rows(name, **labels))

    def has(self, name: str, **labels: str) -> bool:
        return any(True for _ in self.rows(name, **labels))

    def rows(self, name: str, **labels: str) -> Iterator[tuple[float, dict[str, str]]]:
        for (found, pairs), value in self._values.items():
            if found == name and labels.items() <= dict(pairs).items():
                yield value, dict(pairs)

    @property
    def names(self) -> set[str]:
        """Of the series that have a value, as queries name them."""
        return {name for name, _ in self._values}


def scrape(url: str) -> Scraped:
    with urlopen(url, timeout=30) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == CONTENT_TYPE
        return Scraped(answer.read().decode())
