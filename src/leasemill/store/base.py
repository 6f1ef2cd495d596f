"""What a store is: one class of verbs, readings and operations over `run`.

Every store passes the whole conformance suite (`leasemill.testing.conformance`) or is not a store. A store derives from
`Store` and supplies `run` and `arun`, which take any command of `kernel.commands` and return when its answer is
durable, the three ways to wait (`watch`, `watch_end`, `watch_cancellations`), `close`, `presence` and `keys`. Every
other method builds a command and runs it. Readings and operations (`store.readings`, `store.operations`) have twins for
async code; for a verb it writes `await store.arun(command)`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

from msgspec import Struct

from leasemill.errors import Invalid, LeasemillError
from leasemill.kernel import commands as c
from leasemill.kernel.bounds import BATCH_ITEMS
from leasemill.kernel.model import ChainedJob, JobSpec, Policy
from leasemill.store.access_keys import AccessKeys, NoKeys
from leasemill.store.notifications import Expiries, Subscription
from leasemill.store.operations import CommandRunner, StoreOperations
from leasemill.store.readings import Pulse
from leasemill.store.system import Entropy, SystemEntropy


class Watch(Protocol):
    """Something to wait for. It returns True when that may have happened since the watch was made or last returned
    True, False when the time has passed."""

    def wait(self, timeout_s: float) -> bool: ...

    async def wait_async(self, timeout_s: float) -> bool: ...

    def close(self) -> None: ...


def has_ended(outcome: c.AckOutcome) -> bool:
    """Whether a lease ended with this ack, and not before."""
    return isinstance(outcome, c.Acked) and not outcome.is_repeat


class DiskRoom(Struct, frozen=True):
    """The disk under a folder. `is_full`: new jobs are refused, until `needed_bytes` more are free. `reserve_bytes` are
    kept for running jobs and a snapshot; the reserve is whole, or some of it is in use."""

    is_full: bool
    free_bytes: int
    needed_bytes: int
    reserve_bytes: int
    is_reserve_whole: bool


class Block:
    """What a store does around a commit's block, from entering it to the answer.

    Most stores have no tables of the user's, and do nothing before the answer is asked for: the commit is one record.
    PostgreSQL has a transaction open meanwhile, for the user's own writes (`store/postgres/transactions/block.py`)."""

    def __init__(self, store: CommandRunner) -> None:
        self._store = store

    @property
    def connection(self) -> Any:
        """Return the connection whose transaction the commit joins."""
        raise Invalid(
            "tx.execute and tx.connection need a store on PostgreSQL; for a database beside this store write "
            "`with ctx.once(connection)`"
        )

    def begin(self) -> c.CommitOutcome | None:
        """Called before the block runs. If it returns an outcome, the block must not run: the commit has ended so."""
        return None

    def commit(self, command: c.Commit) -> c.CommitOutcome | None:
        """Called after the block, and again after Unavailable. None: nothing was committed, the lease is as it was."""
        return self._store.run(command)

    def roll_back(self) -> None:
        """Called when the block ended with an error; any number of times."""

    async def abegin(self) -> c.CommitOutcome | None:
        return None

    async def acommit(self, command: c.Commit) -> c.CommitOutcome | None:
        return await self._store.arun(command)

    async def aroll_back(self) -> None:
        pass


class Store(StoreOperations):
    """Where jobs are: `app.store`, or what `open_store` returns. Sequences in, one outcome for each item out, in order.

    Every reading is bounded by a limit; every operation is recorded with who did it and why. Times are microseconds
    since the epoch."""

    name = "store"
    """The place of the store, as it may be shown: an absolute folder, or a URL without its password."""

    own_url: str | None = None
    """By which a handler's process opens the store for itself, to write in its transactions; None: it asks the worker's
    process."""

    keys: AccessKeys = NoKeys()
    """The keys of clients of `leasemill serve`; not to be confused with the unique keys of jobs."""

    def __init__(self, entropy: Entropy | None = None, *, has_test_clock: bool = False) -> None:
        self.entropy: Entropy = entropy or SystemEntropy()
        self.has_test_clock = has_test_clock
        """A test moves the store's time, so it is not compared with the machine's clock."""
        self.expiries = Expiries()

    @abstractmethod
    def watch(self, queues: Sequence[str]) -> Watch:
        """Return a watch for new work in these queues."""

    @abstractmethod
    def watch_end(self, job_id: str) -> Watch:
        """Something to wait on for the end of this job (O9). Make it, then look at the job: an end after that wakes.

        It may wake although the job has not ended, and a wait may return early: look again."""

    @abstractmethod
    def watch_cancellations(self, wake: Callable[[], None]) -> Subscription:
        """Call `wake`, in any thread, when a job was cancelled while a worker held it; also when one may have been."""

    def keep_up(self, within_s: float | None = None) -> Pulse | None:
        """Read what other processes wrote, where each has a copy of the state (`file:`), so that the next reading has
        little to catch up with. Elsewhere there is nothing to do.

        `within_s`: beside a busy process stop after so long. A pulse is returned if there is more to read: the latest
        one, of which nothing had to be read."""
        return None

    def room(self) -> DiskRoom | None:
        """Return how full the disk under a folder is; None for a store that is not a folder of this machine."""
        return None

    def set_clock(self) -> int | None:
        """Set the store's clock to this machine's, and return it, where it is one of this machine (`file:`). Elsewhere
        there is nothing to set."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Release everything; a closed store runs no command."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def using(self, connection: object) -> Store:
        """Return this store with an enqueue in the transaction of a caller's connection; on PostgreSQL alone."""
        raise Invalid(
            "using(connection) needs a store on PostgreSQL, in the connection's own database; "
            "on another store enqueue without it, after the transaction has committed"
        )

    def block(self, lease: c.Lease, seconds_left: float) -> Block:
        """Return what surrounds a commit of this lease, whose handler may run for `seconds_left`."""
        return Block(self)

    def joined_block(self, lease: c.Lease, session: object) -> Block:
        """Return what surrounds a commit of this lease in a caller's session's transaction; on PostgreSQL alone."""
        raise Invalid(
            "ctx.commit(session) needs a store on PostgreSQL, in the session's own database; for a database beside "
            "this store write `with ctx.once(connection)`"
        )

    # Verbs

    async def ack_and_claim(self, ack: c.Ack, claim: c.Claim) -> tuple[list[c.AckOutcome], list[c.Lease] | None]:
        """C8: the outcomes of both, the claim after the ack; durable together where a store can. No leases: the claim
        did not come to its end, and is to be repeated."""
        outcomes = await self.arun(ack)
        try:
            return outcomes, await self.arun(claim)
        except LeasemillError:
            return outcomes, None

    def ack_then_acquire(
        self, ack: c.AckReport, acquire: c.AcquireRequest
    ) -> tuple[c.AckOutcome, c.AcquireOutcome | None]:
        """N13: the outcomes of both, durable together where a store can. None: the ack did not end a lease, and nothing
        was acquired."""
        (outcome,) = self.run(c.Ack([ack]))
        return outcome, self.run(c.Acquire([acquire]))[0] if has_ended(outcome) else None

    async def aack_then_acquire(
        self, ack: c.AckReport, acquire: c.AcquireRequest
    ) -> tuple[c.AckOutcome, c.AcquireOutcome | None]:
        (outcome,) = await self.arun(c.Ack([ack]))
        return outcome, (await self.arun(c.Acquire([acquire])))[0] if has_ended(outcome) else None

    def enqueue(self, jobs: Sequence[JobSpec]) -> list[c.EnqueueOutcome]:
        return self.run(c.Enqueue(jobs))

    def claim(
        self,
        worker: str,
        queues: Sequence[str],
        limit: int,
        *,
        kinds: Mapping[str, Policy] | None = None,
        request_id: str | None = None,
        slots: int | None = None,
    ) -> list[c.Lease]:
        *tokens, request = self.entropy.tokens(max(0, min(limit, BATCH_ITEMS)) + 1)
        return self.run(c.Claim(worker, queues, limit, tokens, request_id or request, kinds or {}, slots))

    def start(self, reports: Sequence[c.StartReport]) -> list[c.StartOutcome]:
        return self.run(c.Start(reports))

    def extend(self, leases: Sequence[c.LeaseRef]) -> list[c.ExtendOutcome]:
        return self.run(c.Extend(leases))

    def commit(
        self, job_id: str, token: str, *, result: bytes | None = None, followups: Sequence[c.Followup] = ()
    ) -> c.CommitOutcome:
        return self.run(c.Commit(job_id, token, result, followups))

    def ack(self, reports: Sequence[c.AckReport]) -> list[c.AckOutcome]:
        return self.run(c.Ack(reports))

    def nack(self, reports: Sequence[c.NackReport]) -> list[c.NackOutcome]:
        return self.run(c.Nack(reports))

    def release(self, reports: Sequence[c.ReleaseReport]) -> list[c.ReleaseOutcome]:
        return self.run(c.Release(reports))

    def expire(self, limit: int = 1_000) -> list[c.Expiration]:
        return self.run(c.Expire(limit))

    def death(self, reports: Sequence[c.DeathReport]) -> list[c.DeathOutcome]:
        return self.run(c.Death(reports))

    def acquire(self, requests: Sequence[c.AcquireRequest]) -> list[c.AcquireOutcome]:
        return self.run(c.Acquire(requests))

    def create_group(
        self,
        group_id: str,
        *,
        then: ChainedJob | None = None,
        on_end: ChainedJob | None = None,
        parent: str | None = None,
    ) -> c.OpenedGroup:
        return self.run(c.CreateGroup(group_id, then, on_end, parent))

    def seal_group(self, group_id: str, *, by: str = "", reason: str = "") -> c.GroupView:
        return self.run(c.SealGroup(group_id, by, reason))
