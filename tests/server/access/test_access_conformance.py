"""The conformance suite as a client of a key sees it: a key for everything changes nothing.

So whatever a key adds to the names of workers, tokens and requests is taken off again wherever its client sees them,
and no check, and no filter for queues, stands in the way of what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, cast

import pytest
from msgspec.structs import replace

from leasemill.kernel import commands as c
from leasemill.server.access.key_names import unbound
from leasemill.store.access_keys import AccessKey
from leasemill.store.base import Store, Watch
from leasemill.store.memory import MemoryStore
from leasemill.store.notifications import Subscription
from leasemill.testing.clock import ManualClock
from leasemill.testing.conformance import ConformanceSuite, Harness
from leasemill.testing.conformance.acquire import Acquiring
from leasemill.testing.conformance.claim import Claiming
from leasemill.testing.conformance.lease import Leases
from leasemill.testing.conformance.validation import Refusing
from tests.server.access.world import World, key_of

AnswerT = TypeVar("AnswerT")


OF_THE_WHOLE_STORE = frozenset(
    {c.SetLimit, c.ClearLimit, c.DeclareLimits, c.GetLimit, c.ListLimits, c.Prune, c.Redrive, c.Purge, c.ListActions}
)
"""What a key for some queues may not do, or sees a part of: the suite needs it to make its scenes."""


class KeyedStore(Store):
    """A store, as a client of a key uses it."""

    def __init__(self, behind: MemoryStore, key: AccessKey) -> None:
        super().__init__(behind.entropy)
        self.presence = behind.presence
        behind.expiries.listen(lambda found: self.expiries.notify(unbound(key, found)))
        self._behind = behind
        self._key = key
        self._world = World.__new__(World)
        self._world.store = behind

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        is_of_the_whole_store = type(command) in OF_THE_WHOLE_STORE
        key = replace(self._key, queues=("*",)) if is_of_the_whole_store else self._key
        return cast(AnswerT, self._world.perform(key, command))

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        return self.run(command)

    def watch(self, queues: Sequence[str]) -> Watch:
        return self._behind.watch(queues)

    def watch_end(self, job_id: str) -> Watch:
        return self._behind.watch_end(job_id)

    def watch_cancellations(self, wake: Callable[[], None]) -> Subscription:
        return self._behind.watch_cancellations(wake)

    def close(self) -> None:
        self._behind.close()


@pytest.fixture(autouse=True)
def by_whom_it_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who acts is recorded as the suite wrote it; that it is the key otherwise is tested beside it."""
    monkeypatch.setattr("leasemill.server.access.key_names.signed", lambda _key, command: command)


class KeyedHarness:
    def __init__(self, *patterns: str) -> None:
        self.clock = ManualClock()
        self.store = KeyedStore(MemoryStore(self.clock), key_of(queues=patterns))

    def reopen(self) -> None:
        """What is in memory stays."""

    def close(self) -> None:
        self.store.close()


class TestKeyForAllQueues(Claiming, Acquiring, Leases, Refusing):
    """Nothing is filtered: of the suite only what has the names of workers, tokens and requests in it."""

    @pytest.fixture
    def harness(self) -> Iterator[Harness]:
        harness = KeyedHarness("*")
        yield harness
        harness.close()


class TestKeyForSomeQueues(ConformanceSuite):
    """Every check and every filter is on; the pattern stands for all names that there are."""

    @pytest.fixture
    def harness(self) -> Iterator[Harness]:
        harness = KeyedHarness("?*")
        yield harness
        harness.close()
