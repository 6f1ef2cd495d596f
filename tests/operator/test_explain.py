"""How every situation of a job is explained, on the stores of one machine. PostgreSQL: tests/store/postgres."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.machine import run
from leasemill.kernel.model import QueueMode
from leasemill.kernel.verbs.claim import claimable
from leasemill.operator.explain import Situation, explain
from leasemill.operator.facts import gather
from leasemill.store.base import Store, Watch
from leasemill.store.file.options import FileOptions
from leasemill.store.file.store import FileStore
from leasemill.store.memory import MemoryStore
from leasemill.store.notifications import Subscription
from leasemill.testing.conformance import DurableHarness, Harness, KeptHarness
from tests.kernel.world import World, history
from tests.operator.situations import ExplainSuite

AnswerT = TypeVar("AnswerT")


class TestMemory(ExplainSuite):
    @pytest.fixture
    def harness(self) -> Iterator[Harness]:
        harness = KeptHarness(MemoryStore)
        yield harness
        harness.close()


class TestFile(ExplainSuite):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[Harness]:
        options = FileOptions(segment_bytes=64 * 1024, does_maintenance=False)
        harness = DurableHarness(lambda clock: FileStore(tmp_path / "jobs", options=options, clock=clock))
        yield harness
        harness.close()


class Looking(Store):
    """A store that only looks at the state of a history."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        events, answer = run(self._world.state, command, self._world.now)
        assert events == []
        return answer

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        return self.run(command)

    def watch(self, queues: Sequence[str]) -> Watch:
        raise NotImplementedError

    def watch_end(self, job_id: str) -> Watch:
        raise NotImplementedError

    def watch_cancellations(self, wake: Callable[[], None]) -> Subscription:
        raise NotImplementedError

    def close(self) -> None: ...


def test_in_random_histories_a_job_is_explained_as_due_if_and_only_if_a_claim_would_get_it() -> None:
    seen: Counter[Situation] = Counter()
    for seed, steps in enumerate([40] * 20 + [300] * 10):
        world = history(seed, steps)
        queues = [name for name, queue in world.state.queues.items() if queue.mode is not QueueMode.ACQUIRE]
        claim = c.Claim("somebody", queues, 10_000, ())
        due = {job.spec.id for job in claimable(world.state, claim, world.now)}
        for job_id, job in world.state.jobs.items():
            facts = gather(Looking(world), job_id, world.now)
            assert facts is not None
            explanation = explain(facts)
            seen[explanation.situation] += 1
            assert (explanation.situation is Situation.DUE) == (job_id in due), explanation
            assert explanation.state is job.state
    assert len(seen) >= 12, "most situations are met by chance"
