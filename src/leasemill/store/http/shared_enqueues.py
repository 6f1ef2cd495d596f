"""Enqueues of one process that share a request.

The first caller sends at once; those that come while its request is under way make the next one. There is no timer, so
one caller alone never waits. A request reports an outcome for each job, and each caller gets its own. If a request of
several calls fails as a whole, each caller sends its own jobs, so that an error reaches the call it belongs to. Ids are
drawn before anything is sent, so nothing that was carried out already is done twice.

Calls with drawn ids share one pipeline. Calls with ids of their own share another, because such an id may be in an open
transaction behind the server, for which the whole request would wait. Calls that are decided by other jobs go alone, as
on PostgreSQL: unique keys, groups and chains; so do large calls, and those that have waited for a request that hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.store.http.client import ClientCall, HttpClient, Posted
from leasemill.store.http.retry_policy import AWAY, Answered, CallFailed, has_answer, read_answer
from leasemill.store.pipeline import Pipeline, Ticket
from leasemill.wire.codec import merged_enqueues
from leasemill.wire.routes import BY_COMMAND

SHARED_JOBS: Final = 100
"""A call of more jobs than this is a request of its own."""
SHARED_BYTES: Final = 64 * 1024
REQUEST_BYTES: Final = 256 * 1024
"""The most bytes of a shared request: far less than a server takes, or a proxy in front of it."""
JOB_BYTES: Final = 256
"""The least that a job weighs: a request has 1,024 of them at most."""
WAIT_S: Final = 0.5
"""The longest a call waits for somebody else's request; then it goes alone."""
ROUTE: Final = BY_COMMAND[c.Enqueue]
OF_EACH: Final = {HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS, *AWAY}

OffLoop = Callable[..., Awaitable[Any]]


class RequestTicket(Ticket, eq=False):
    """A call of so many jobs. `posted`: what came of the request it was in, where that was no answer; None: its caller
    sends it as if it had never been sent."""

    command: ClientCall
    jobs: int = 0
    posted: Posted | None = None


class SharedEnqueues:
    """The shared requests of one store. `off_loop` runs a function in one of the store's threads."""

    def __init__(self, client: HttpClient, off_loop: OffLoop) -> None:
        self._client = client
        self._off_loop = off_loop
        self._pipelines = {
            are_new: Pipeline(self._send, "leasemill enqueue", REQUEST_BYTES) for are_new in (True, False)
        }

    def run(self, command: c.Enqueue) -> list[c.EnqueueOutcome]:
        ticket = self._ticket(command)
        outcomes: list[c.EnqueueOutcome] | None = None
        if ticket.weight:
            outcomes = self._pipelines[command.are_new].run(ticket, WAIT_S)
        return self._client.finish(ticket.command, ticket.posted) if outcomes is None else outcomes

    async def arun(self, command: c.Enqueue) -> list[c.EnqueueOutcome]:
        ticket = self._ticket(command)
        outcomes: list[c.EnqueueOutcome] | None = None
        if ticket.weight:
            pipeline = self._pipelines[command.are_new]
            limit = asyncio.get_running_loop().call_later(WAIT_S, _withdraw, pipeline, ticket)
            try:
                outcomes = await pipeline.arun(ticket)
            finally:
                limit.cancel()
        if outcomes is None:
            outcomes = await self._off_loop(self._client.finish, ticket.command, ticket.posted)
        return outcomes

    def close(self) -> None:
        """Close the pipelines without waiting: requests under way end when the client is closed."""
        for pipeline in self._pipelines.values():
            pipeline.close(joins=False)

    def after_fork(self) -> None:
        for pipeline in self._pipelines.values():
            pipeline.reset()

    def _ticket(self, command: c.Enqueue) -> RequestTicket:
        """Return a ticket for the call; one without a weight is not shared."""
        call = self._client.call(command)
        return RequestTicket(call, shared_weight(command.jobs, len(call.body)), jobs=len(command.jobs))

    def _send(self, batch: list[RequestTicket]) -> None:
        """Send a batch in one request; each call has its answer, or is left to its caller. Raises no Exception."""
        tickets = [ticket for ticket in batch if ticket.future is None or not ticket.future.cancelled()]
        if not tickets:
            return
        body = merged_enqueues([ticket.command.body for ticket in tickets])
        try:
            posted = self._client.post(ROUTE, body)
        except Unavailable:
            return  # closed: all of them find out by themselves
        outcomes = _outcomes(posted.reply, sum(ticket.jobs for ticket in tickets))
        if outcomes is not None:
            following = iter(outcomes)
            for ticket in tickets:
                ticket.answer = [next(following) for _ in range(ticket.jobs)]
        elif len(tickets) == 1 or _is_of_each(posted.reply):
            for ticket in tickets:
                ticket.posted = posted


def _withdraw(pipeline: Pipeline[RequestTicket], ticket: RequestTicket) -> None:
    if pipeline.withdraw(ticket) and ticket.future is not None and not ticket.future.done():
        ticket.future.set_result(None)


def shared_weight(jobs: Sequence[JobSpec], body_bytes: int) -> int:
    """Return what a call weighs in a request with others; 0 if it goes alone."""
    if not 0 < len(jobs) <= SHARED_JOBS or body_bytes > SHARED_BYTES:
        return 0
    for job in jobs:
        rules = job.rules
        if rules is not None and (rules.unique is not None or rules.group is not None or rules.chain):
            return 0
    return max(body_bytes, len(jobs) * JOB_BYTES)


def _outcomes(reply: Answered | CallFailed, count: int) -> list[c.EnqueueOutcome] | None:
    """Return the outcomes in a reply; None if it does not have one for each job."""
    if isinstance(reply, CallFailed) or not has_answer(reply):
        return None
    try:
        outcomes: list[c.EnqueueOutcome] = read_answer(ROUTE, reply)
    except msgspec.DecodeError:
        return None
    return outcomes if len(outcomes) == count else None


def _is_of_each(reply: Answered | CallFailed) -> bool:
    """Whether a reply says nothing of the jobs: each caller then goes on as if it had sent them alone."""
    return isinstance(reply, CallFailed) or reply.status in OF_EACH
