"""The authorizer of `leasemill serve`: hosts, keys, limits, and what each key may do.

Before a body is read: is the host ours, does the key exist, has its client not asked for too much. When the command is
known, `access` decides; what it asks for is answered here. What must never happen here: an answer for a key that was
revoked before a call that waits was answered.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.command import Command
from leasemill.server.access.authorization import performed
from leasemill.server.access.permissions import check_page
from leasemill.server.access.redact_answer import JobQueues
from leasemill.server.authorizer import Admission, Authorizer, RequestHead, Run
from leasemill.server.hosts import Hosts
from leasemill.server.keyring import KeyRing
from leasemill.server.limits import Meter, ServerLimits
from leasemill.store.access_keys import AccessKey
from leasemill.store.steps import adrive
from leasemill.wire import requests as r
from leasemill.wire.problems import Denied, Problem, problem_of
from leasemill.wire.routes import PREFIX, Route

WAITS: Final = frozenset({c.Claim, r.WatchQueues, r.WatchEnd, r.WatchCancellations})
"""Commands that may be answered long after they were sent."""
REFERENCE: Final = "/openapi.json"
QUEUES_KNOWN: Final = 100_000
AT_ONCE: Final = 500
FORWARDED: Final = frozenset({"forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip"})
"""Headers that proxies add: the sender of such a request may be on any machine."""
BEARER: Final = "bearer "
BASIC: Final = "basic "


class KeyAdmission(Admission, frozen=True, kw_only=True):
    """`key`: None for a client on loopback that sends none."""

    key: AccessKey | None = None
    who: str | None = None
    is_poll: bool = False
    reserved: int = 0


class KeyAuthorizer(Authorizer):
    """`open_paths`: what may be asked for without a key, such as the health of the server."""

    def __init__(
        self,
        ring: KeyRing,
        hosts: Hosts,
        *,
        needs_key: bool,
        limits: ServerLimits | None = None,
        open_paths: frozenset[str] = frozenset(),
    ) -> None:
        self._ring = ring
        self._hosts = hosts
        self._needs_key = needs_key
        self._limits = limits or ServerLimits()
        self._meter = Meter(self._limits)
        self._open_paths = open_paths
        self._queues: OrderedDict[str, str] = OrderedDict()
        """The queue of each job, which may be that of an earlier job with the same id."""

    async def admit(self, head: RequestHead) -> KeyAdmission:
        self._hosts.check(head)
        key = self._authenticated(head)
        if key is not None and head.route is None and not self._shows_nothing(head.path):
            check_page(key, head.method)
        who = None if key is None else f"key {key.name} ({key.id})"
        is_poll = head.route is not None and head.route.command in WAITS
        reserved = 0 if head.route is None else _announced(head.headers, self._limits.body_bytes)
        self._meter.enter(who, is_poll=is_poll, body_bytes=reserved)
        return KeyAdmission(
            principal="anybody" if key is None else f"{key.name} ({key.id})",
            body_bytes=self._limits.body_bytes,
            body_s=self._limits.body_s,
            key=key,
            who=who,
            is_poll=is_poll,
            reserved=reserved,
        )

    def left(self, admission: Admission) -> None:
        assert isinstance(admission, KeyAdmission)
        self._meter.leave(admission.who, is_poll=admission.is_poll, body_bytes=admission.reserved)

    async def perform(self, admission: Admission, route: Route, command: Command[Any], run: Run) -> Any:
        assert isinstance(admission, KeyAdmission)
        key = admission.key
        if key is None:
            return await run(command)
        return await adrive(performed(key, command), lambda step: self._answer(key, step, run))

    def _shows_nothing(self, path: str) -> bool:
        """Return True for paths that show nothing of the store: health, the reference, and unknown commands."""
        return path in self._open_paths or path == REFERENCE or path.startswith(PREFIX)

    # Keys ------------------------------------------------------------------------------------------------------------

    def _authenticated(self, head: RequestHead) -> AccessKey | None:
        sent = head.headers.get("authorization")
        if sent is None:
            if head.path in self._open_paths:
                return None
            if self._needs_key:
                raise _unauthorized(
                    "this server needs a key: set LEASEMILL_TOKEN, or send it as Authorization: Bearer lm_…",
                    head.route is None,
                )
            if FORWARDED & head.headers.keys():
                raise _proxied()
            return None
        try:
            key = self._ring.find(_text(sent, is_page=head.route is None))
        except Unavailable as error:
            raise problem_of(error) from None
        if key is None:
            raise _unauthorized("the key is unknown, has expired or was revoked: ask for another", head.route is None)
        return key

    # What the steps ask for ------------------------------------------------------------------------------------------

    async def _answer(self, key: AccessKey, step: Command[Any], run: Run) -> Any:
        if isinstance(step, JobQueues):
            return await self._queues_of(step, run)
        if type(step) not in WAITS:
            return await run(step)
        answer = await self._while_live(key, step, run)
        if isinstance(step, c.Claim):
            self._remember({lease.job.id: lease.job.queue for lease in answer})
        return answer

    async def _while_live(self, key: AccessKey, step: Command[Any], run: Run) -> Any:
        """The answer, unless the key ends before there is one."""
        task, ended = asyncio.ensure_future(run(step)), self._ring.ended(key)
        try:
            await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise _unauthorized("the key has expired or was revoked: ask for another", is_page=False)
        finally:
            self._ring.forget(ended)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    async def _queues_of(self, asked: JobQueues, run: Run) -> dict[str, str]:
        remembered = self._queues if asked.may_be_old else {}
        known = {job_id: remembered[job_id] for job_id in asked.job_ids if job_id in remembered}
        unknown = [job_id for job_id in dict.fromkeys(asked.job_ids) if job_id not in known]
        for start in range(0, len(unknown), AT_ONCE):
            part = tuple(unknown[start : start + AT_ONCE])
            after: int | None = 0
            while after is not None:
                page: c.JobPage = await run(c.ListJobs(c.JobFilter(job_ids=part), len(part) + 1, after))
                known.update({job.spec.id: job.spec.queue for job in page.jobs})
                after = page.after
        self._remember(known)
        return known

    def _remember(self, queues: Mapping[str, str]) -> None:
        self._queues.update(queues)
        while len(self._queues) > QUEUES_KNOWN:
            self._queues.popitem(last=False)


def _announced(headers: Mapping[str, str], most: int) -> int:
    """Return how many bytes to set aside for the body of a command. One that announces no length may be as large as
    any. What is not a command has no body that is kept, so a client without a key sets nothing aside."""
    length = headers.get("content-length")
    if length is not None and length.isdigit():
        return min(int(length), most)
    return most if "transfer-encoding" in headers else 0


def _text(sent: str, *, is_page: bool) -> str:
    """The key in an Authorization header. A browser sends what a person typed as the password, for pages alone."""
    if sent[: len(BEARER)].lower() == BEARER:
        return sent[len(BEARER) :].strip()
    if is_page and sent[: len(BASIC)].lower() == BASIC:
        with suppress(ValueError):
            return b64decode(sent[len(BASIC) :].strip(), validate=True).decode().partition(":")[2]
    return ""


def _unauthorized(detail: str, is_page: bool) -> Denied:
    status = HTTPStatus.UNAUTHORIZED
    scheme = "Basic" if is_page else "Bearer"
    challenge = ("www-authenticate", f'{scheme} realm="leasemill"')
    return Denied(Problem(status.value, status.phrase, "unauthorized", detail), (challenge,))


def _proxied() -> Denied:
    status = HTTPStatus.FORBIDDEN
    detail = (
        "this server takes requests of this machine without a key, and this one came through a proxy: start it with "
    )
    return Denied(Problem(status.value, status.phrase, "forbidden", detail + "--require-keys", field="forwarded"))
