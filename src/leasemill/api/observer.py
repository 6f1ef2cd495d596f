"""`Observer`: what a worker reports about itself while it works. Metrics and tracing are built on it.

A worker calls its observers where the work is done: on its event loop unless a method says otherwise. They must be
quick and must not block. An error in one is logged, the first time, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct

from leasemill.kernel.commands import Expiration, Lease

End: TypeAlias = Literal["succeeded", "retried", "failed", "dead", "released", "refused"]
"""The way in which the store settled a run. `retried`: it failed and will run again; `failed`: it failed permanently;
`dead`: it was quarantined; `released`: it was released, without a penalty; `refused`: the lease was not held any more,
nothing was changed."""


class Settled(Struct, frozen=True):
    """A report that the store has answered: how one run ended."""

    lease: Lease
    end: End
    error: str | None = None
    """The reason why it failed, could not be run or was refused. A run that failed after its commit succeeded, with
    this."""


class Observer:
    """The base class of observers: override the methods you need. By default they do nothing."""

    is_exporting: ClassVar[bool] = False
    """True if it exports metrics: its workers publish that, and elect one of them to count the jobs in the queues."""

    def worker_began(self, worker_id: str, slots: int, counters: Callable[[], Mapping[str, float]]) -> None:
        """A worker begins to work. `counters()`, from any thread: its numbers, those of `leasemill workers --json`."""

    def worker_ended(self, worker_id: str) -> None:
        """The worker has ended, and reports nothing more."""

    def claimed(self, leases: Sequence[Lease], took_s: float) -> None:
        """The store has answered a claim, perhaps with no leases."""

    def run_started(self, lease: Lease, waited_s: float | None) -> None:
        """A handler is about to be called. `waited_s`: since the job was due; None: unknown, it has run before."""

    def run_ended(self, lease: Lease, took_s: float) -> None:
        """A handler has ended, whatever happens to its report."""

    def settled(self, batch: Sequence[Settled], took_s: float) -> None:
        """The store has answered reports of one kind: acks, nacks or releases. `took_s`: the call that it answered."""

    def lost(self, lease: Lease, reason: str) -> None:
        """A lease was lost while this worker had the job: what the handler returns is dropped."""

    def timed_out(self, lease: Lease) -> None:
        """A handler ran longer than its timeout; how the job is settled follows."""

    def extended(self, count: int, not_extended: int, took_s: float) -> None:
        """A heartbeat was answered: how many leases it extended, and how many not. In the heartbeat's thread."""

    def expired(self, expirations: Sequence[Expiration]) -> None:
        """This worker has recorded expired leases, of any worker. In any thread."""

    def reaper_ran(self, recovered: int) -> None:
        """The reaper has searched for expired leases, and recorded this many. In the housekeeping thread."""

    def store_called(self, verb: str, took_s: float) -> None:
        """The store has answered a command of the worker itself, not of a handler. In any thread."""

    def store_failed(self, verb: str) -> None:
        """The store was unavailable for a command or a housekeeping task, which is repeated. In any thread."""
