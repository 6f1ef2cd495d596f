"""Which commands report on a lease: only its holder may send them (L2). Declared once, for all who treat them alike.

A death is reported too, but by others than the holder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from msgspec.structs import replace

from leasemill.kernel.bounds import LeaseReport
from leasemill.kernel.command import Command
from leasemill.kernel.model import ReportVerb, Verb
from leasemill.kernel.verbs.ack import Ack
from leasemill.kernel.verbs.commit import Commit
from leasemill.kernel.verbs.death import Death
from leasemill.kernel.verbs.extend import Extend
from leasemill.kernel.verbs.nack import Nack
from leasemill.kernel.verbs.release import Release
from leasemill.kernel.verbs.start import Start

HolderReport: TypeAlias = Start | Extend | Commit | Ack | Nack | Release
ReportT = TypeVar("ReportT", bound=HolderReport | Death)

REPORTS: Final[dict[type[Command[Any]], ReportVerb]] = {
    Start: Verb.START,
    Extend: Verb.EXTEND,
    Commit: Verb.COMMIT,
    Ack: Verb.ACK,
    Nack: Verb.NACK,
    Release: Verb.RELEASE,
}


def reports_in(command: HolderReport | Death) -> Sequence[LeaseReport]:
    """The leases that a command reports on, one after the other."""
    match command:
        case Commit():
            return (command,)
        case Extend():
            return command.leases
        case Start() | Ack() | Nack() | Release() | Death():
            return command.reports


def with_tokens(command: ReportT, renamed: Callable[[str], str]) -> ReportT:
    """The same command, about leases of other tokens."""
    match command:
        case Commit():
            return replace(command, token=renamed(command.token))
        case Extend():
            return replace(command, leases=[replace(one, token=renamed(one.token)) for one in command.leases])
        case Start() | Ack() | Nack() | Release() | Death():
            return replace(command, reports=[replace(one, token=renamed(one.token)) for one in command.reports])
