"""Names that are bound to a key: of workers, tokens and requests, and of who acts.

A client of the key 0123456789ab that claims as worker `w` with token `t` holds a lease of the worker `w@0123456789ab`
under the token `t@0123456789ab`. The server appends the key's id to whatever a client sends, and takes it off whatever
that client is shown; so a client can name nothing but its own leases, whatever tokens of others it has read. That is in
the records of the store: it holds after a restart, and for several servers.

The end is appended, not put before: the tokens of a worker begin with its instance.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final, TypeVar

from msgspec import MsgspecError
from msgspec.structs import replace

from leasemill.kernel import commands as c
from leasemill.kernel.commands import HolderReport, with_tokens
from leasemill.kernel.model import Action, Execution, Job, Refusal
from leasemill.kernel.verbs.worker_commands import VERBS
from leasemill.store.access_keys import AccessKey
from leasemill.store.worker_records import decode_record, encode_record
from leasemill.wire import requests as r
from leasemill.wire.routes import Role

BOUND: Final = re.compile(r".*@[0-9a-f]{12}", re.ASCII | re.DOTALL)
"""A name that belongs to some key."""
ON_WORKERS: Final = frozenset(VERBS.values())
"""Actions whose target is a worker."""

SignedT = TypeVar("SignedT", bound=c.Command[Any])


def end_of(key: AccessKey) -> str:
    return f"@{key.id}"


def as_meant(key: AccessKey, name: str) -> str:
    """A worker or a token, named by somebody who may name those of others: as a list shows it. What has no key's end is
    the client's own, if it works itself."""
    is_own = BOUND.fullmatch(name) is None and Role.WORKER in key.roles
    return name + end_of(key) if is_own else name


# What a client sends -------------------------------------------------------------------------------------------------


def bound(key: AccessKey, command: c.Command[Any]) -> c.Command[Any]:
    """The command with the key's names in it."""
    end = end_of(key)
    if isinstance(command, HolderReport):
        return with_tokens(command, lambda token: token + end)
    match command:
        case c.Claim():
            request_id = None if command.request_id is None else command.request_id + end
            tokens = [token + end for token in command.tokens]
            return replace(command, worker=command.worker + end, tokens=tokens, request_id=request_id)
        case c.Acquire():
            requests = [replace(one, worker=one.worker + end, token=one.token + end) for one in command.requests]
            return replace(command, requests=requests)
        case c.Death():
            return with_tokens(command, partial(_of_the_dead, key))
        case c.ListLeases(worker=worker) if worker is not None:
            return replace(command, worker=as_meant(key, worker))
        case c.OrderWorker():
            return replace(signed(key, command), worker=as_meant(key, command.worker))
        case r.PublishPresence():
            return r.PublishPresence(command.worker_id + end, _renamed(command.record, command.worker_id + end))
        case r.RemovePresence():
            return r.RemovePresence(removed_worker(key, command), command.instance)
        case _:
            return signed(key, command)


def removed_worker(key: AccessKey, command: r.RemovePresence) -> str:
    """Return the id of the worker whose record is removed: any worker for a key that may operate."""
    return _of_the_dead(key, command.worker_id)


def _of_the_dead(key: AccessKey, name: str) -> str:
    """Return the name of a worker that has gone: any worker for a key that may operate, else the key's own."""
    return as_meant(key, name) if Role.OPERATOR in key.roles else name + end_of(key)


def _renamed(record: bytes, worker_id: str) -> bytes:
    """Return the record with the worker's name in it, which must be that of its leases. An unreadable one has no
    name."""
    try:
        return encode_record(replace(decode_record(record), worker=worker_id))
    except MsgspecError:
        return record


def signed(key: AccessKey, command: SignedT) -> SignedT:
    """Return the command with the key's name as who did it, whatever the client wrote."""
    by = getattr(command, "by", None)
    if by is None or (isinstance(command, c.SealGroup) and not by):
        return command
    return replace(command, by=key.name)


# Answers to a client ----------------------------------------------------------------------------------------------


def unbound(key: AccessKey, answer: Any) -> Any:
    """The answer as a client knows it: without the key's end where it is the client's own."""
    if Role.WORKER not in key.roles:
        return answer
    return _unbound(end_of(key), answer)


def _unbound(end: str, answer: Any) -> Any:
    match answer:
        case list():
            return [_unbound(end, one) for one in answer] if answer and _has_names(answer[0]) else answer
        case c.Lease() | c.LeaseView():
            return replace(answer, token=answer.token.removesuffix(end), worker=answer.worker.removesuffix(end))
        case c.Acquired() | c.AlreadyAcquired():
            return replace(answer, lease=_unbound(end, answer.lease))
        case c.Expiration():
            return replace(answer, worker=answer.worker.removesuffix(end))
        case Action(target=target) if answer.verb in ON_WORKERS:
            return replace(answer, target=target.removesuffix(end))
        case r.PresenceRecord(worker_id=worker_id) if worker_id.endswith(end):
            own = worker_id.removesuffix(end)
            return replace(answer, worker_id=own, record=_renamed(answer.record, own))
        case Job() if answer.executions or answer.refusals:
            executions = tuple(_of_client(end, one) for one in answer.executions)
            return replace(answer, executions=executions, refusals=tuple(_refused(end, one) for one in answer.refusals))
        case c.JobPage():
            return replace(answer, jobs=tuple(_unbound(end, job) for job in answer.jobs))
        case c.LaneView(head=Job() as head):
            return replace(answer, head=_unbound(end, head))
        case c.LanePage():
            return replace(answer, lanes=tuple(_unbound(end, lane) for lane in answer.lanes))
        case _:
            return answer


def _has_names(answer: object) -> bool:
    """Return True if outcomes of this kind name a worker or a token; a list may mix those of acquire."""
    return isinstance(
        answer,
        c.Lease | c.LeaseView | c.Expiration | Action | r.PresenceRecord | c.Acquired | c.AlreadyAcquired | c.Backlogged
        | c.AlreadyFinished | c.OutOfOrder,
    )  # fmt: skip


def _of_client(end: str, execution: Execution) -> Execution:
    if not execution.token.endswith(end):
        return execution
    request_id = None if execution.request_id is None else execution.request_id.removesuffix(end)
    return replace(
        execution,
        token=execution.token.removesuffix(end),
        worker=execution.worker.removesuffix(end),
        request_id=request_id,
    )


def _refused(end: str, refusal: Refusal) -> Refusal:
    if not refusal.token.endswith(end):
        return refusal
    worker = None if refusal.worker is None else refusal.worker.removesuffix(end)
    return replace(refusal, token=refusal.token.removesuffix(end), worker=worker)
