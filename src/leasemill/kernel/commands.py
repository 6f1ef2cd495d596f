"""The commands of a store and their answers: all other modules import them from here.

A command carries its own randomness (tokens, jitter, request ids), drawn by its sender; repeated as it is after
a lost reply, it gives the same answer. Commands on many items return one outcome for each, in order; an expected
alternative (a duplicate, a lost lease) is an outcome, not an exception.

At the end stands which commands report on a lease: only its holder may send them (L2). A death is reported too, but by
others than the holder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from msgspec.structs import replace

from leasemill.kernel.bounds import LeaseReport
from leasemill.kernel.command import *
from leasemill.kernel.command import Command
from leasemill.kernel.model import ReportVerb, Verb
from leasemill.kernel.read.filter import *
from leasemill.kernel.read.jobs import *
from leasemill.kernel.read.queues import *
from leasemill.kernel.read.rules import *
from leasemill.kernel.transitions.fence import *
from leasemill.kernel.transitions.grant import *
from leasemill.kernel.transitions.lanes import *
from leasemill.kernel.verbs.ack import *
from leasemill.kernel.verbs.ack import Ack
from leasemill.kernel.verbs.acquire import *
from leasemill.kernel.verbs.cancel import *
from leasemill.kernel.verbs.claim import *
from leasemill.kernel.verbs.commit import *
from leasemill.kernel.verbs.commit import Commit
from leasemill.kernel.verbs.death import *
from leasemill.kernel.verbs.death import Death
from leasemill.kernel.verbs.enqueue import *
from leasemill.kernel.verbs.expire import *
from leasemill.kernel.verbs.extend import *
from leasemill.kernel.verbs.extend import Extend
from leasemill.kernel.verbs.group import *
from leasemill.kernel.verbs.limits import *
from leasemill.kernel.verbs.nack import *
from leasemill.kernel.verbs.nack import Nack
from leasemill.kernel.verbs.purge import *
from leasemill.kernel.verbs.queues import *
from leasemill.kernel.verbs.redrive import *
from leasemill.kernel.verbs.release import *
from leasemill.kernel.verbs.release import Release
from leasemill.kernel.verbs.schedules import *
from leasemill.kernel.verbs.start import *
from leasemill.kernel.verbs.start import Start
from leasemill.kernel.verbs.ticks import *
from leasemill.kernel.verbs.worker_commands import *

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
