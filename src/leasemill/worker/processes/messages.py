"""What a worker and a handler's process send each other. Data only: nothing is pickled.

A job's payload, a handler's result and its follow-ups travel as the JSON they are in the lease and in the report.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from msgspec import Struct, msgpack

from leasemill.kernel.commands import Lease

EXIT_CUT_OFF: Final = 71
"""The exit status of a process whose handler has closed its connection to the worker."""

Packed: TypeAlias = tuple[str, bytes]
"""The name of a value's class and its fields, see `codec`."""


class AppTarget(Struct, frozen=True, array_like=True):
    """Where a new process finds the app. `main`: how it imports the program itself, if the app is part of it."""

    module: str
    name: str
    main: dict[str, str] | None = None


class ToChild(Struct, frozen=True, array_like=True, tag=True):
    """A message from the worker to the process."""


class Begin(ToChild, frozen=True):
    """The first one. `url`: the store that the process opens itself; None: it asks the worker."""

    app: AppTarget
    sys_path: list[str]
    argv: list[str]
    folder: str
    url: str | None
    levels: dict[str, int]
    """The levels of loggers by name; the root logger is ""."""
    store_name: str


class BeginRun(ToChild, frozen=True):
    """Run the handler. Times are of the machine's monotonic clock, which processes share."""

    lease: Lease
    jitter: float
    held_until: float
    ends_at: float
    """When the lease ends: a process whose worker cannot end it does so itself."""


class LeaseHeld(ToChild, frozen=True):
    """The lease was extended."""

    held_until: float
    ends_at: float


class StopRun(ToChild, frozen=True):
    """Raise in the handler, and set `ctx.lost`."""

    reason: str


class WorkerStops(ToChild, frozen=True):
    """Set `ctx.stopping`."""


class StoreAnswered(ToChild, frozen=True):
    request: int
    items: list[Packed]
    is_list: bool


class StoreRaised(ToChild, frozen=True):
    request: int
    error: Packed


class ToWorker(Struct, frozen=True, array_like=True, tag=True):
    """A message from the process to the worker."""


class ChildReady(ToWorker, frozen=True):
    """The app is imported, with these kinds."""

    kinds: list[str]


class CannotBegin(ToWorker, frozen=True):
    why: str
    traceback: str


class RunEnded(ToWorker, frozen=True):
    report: Packed
    is_never_retried: bool
    is_committed: bool
    lost: str | None
    """Why the lease is lost, if the process learned of it: its commit was refused."""
    raised: str | None
    """The traceback, for the log."""
    has_raised: bool
    """Whether the handler raised anything, also what is not for the log."""


class AskStore(ToWorker, frozen=True):
    """Run a command on the worker's store."""

    request: int
    command: Packed


class AskPresence(ToWorker, frozen=True):
    """Call a method of the presence of the worker's store."""

    request: int
    method: str
    worker_id: str = ""
    record: bytes = b""
    instance: str | None = None


class ProgressMade(ToWorker, frozen=True):
    token: str
    done: int | float
    total: int | float | None
    note: str


class LogLine(ToWorker, frozen=True):
    logger: str
    level: int
    message: str
    fields: dict[str, Any]
    """The rest of the record: when, where, and what was passed with `extra`."""
    exception: str | None
    is_of_run: bool
    """It was written where the handler runs, not by a thread that goes on beside it."""


AnyToChild: TypeAlias = Begin | BeginRun | LeaseHeld | StopRun | WorkerStops | StoreAnswered | StoreRaised
AnyToWorker: TypeAlias = ChildReady | CannotBegin | RunEnded | AskStore | AskPresence | ProgressMade | LogLine

encode = msgpack.Encoder(enc_hook=str).encode
to_child = msgpack.Decoder(AnyToChild).decode
to_worker = msgpack.Decoder(AnyToWorker).decode
