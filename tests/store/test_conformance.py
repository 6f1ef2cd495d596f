"""The conformance suite on the memory store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasemill.store.memory import MemoryStore
from leasemill.testing.conformance import ConformanceSuite, Harness, KeptHarness


class TestMemory(ConformanceSuite):
    @pytest.fixture
    def harness(self) -> Iterator[Harness]:
        harness = KeptHarness(MemoryStore)
        yield harness
        harness.close()
