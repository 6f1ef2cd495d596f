"""The parts that the verbs of one store share: knowledge of it, its maintenance, and the notification of callers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.store.notifications import Signal
from leasemill.store.postgres.exact.decide import LockSet, decide
from leasemill.store.postgres.known import Known
from leasemill.store.postgres.maintenance import Maintenance
from leasemill.store.postgres.steps import Steps, Verb, rows, transact
from leasemill.store.postgres.waking.notify import Notifier

AnswerT = TypeVar("AnswerT")


class VerbContext(NamedTuple):
    """The collaborators of every verb."""

    known: Known
    maintenance: Maintenance
    notifier: Notifier
    signal: Signal

    def decide(self, command: c.Command[AnswerT], lock_set: LockSet) -> Verb[AnswerT]:
        """On the exact path."""
        answer = yield from transact(lambda _: decide(self.known, command, lock_set))
        yield from self.follow_decision()
        return answer

    def follow_decision(self) -> Verb[None]:
        """Jobs that it caused take their places in their lanes; waiting callers are notified if there may be a job."""
        yield from self.maintenance.admit_caused()
        yield from self.wake_if_moved()

    def wake_if_moved(self) -> Verb[None]:
        """Callers that wait are notified, once, if jobs may have become claimable since the last time."""
        if self.known.has_moved_jobs:
            self.known.has_moved_jobs = False
            yield from self.notifier.wake()

    def free_limits(self, names: Collection[str]) -> Verb[None]:
        """Leases under these limits have ended (T3): queues where jobs wait for one of them are notified."""
        channel = self.notifier.channel() if names else None
        if channel is None:
            return
        given = {"channel": channel, "names": sorted(names)}
        with suppress(Unavailable):  # a waiting claim looks again within a second
            yield from transact(lambda _: rows("notify_places", given))


def read(steps: Callable[..., Steps[AnswerT]], *arguments: Any) -> Verb[AnswerT]:
    """A reading: its statements are transactions of their own."""
    return transact(lambda _: steps(*arguments))
