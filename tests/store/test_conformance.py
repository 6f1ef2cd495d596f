"""The conformance suite on the memory store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasemill.store.memory import MemoryStore
from leasemill.testing.conformance import ConformanceSuite, Harness, KeptHarness
from leasemill.testing.conformance.chaining import Chaining
from leasemill.testing.conformance.grouping import Grouping
from leasemill.testing.conformance.regrouping import Regrouping


class TestMemory(Grouping, Regrouping, Chaining, ConformanceSuite):
    @pytest.fixture
    def harness(self) -> Iterator[Harness]:
        harness = KeptHarness(MemoryStore)
        yield harness
        harness.close()
