"""The store of a handler's process, and the worker's end of it.

A handler's process has one of two stores: one that asks the worker's, or one that opens its own when it is first used.

On `memory:` and `file:` the worker runs the commands: the first is nowhere else, of the second this process would need
a copy of its own. On PostgreSQL a handler writes in the commit's transaction, so its process has a connection.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

from leasemill.errors import Invalid, LeasemillError, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.machine import check
from leasemill.kernel.model import WorkerOrder
from leasemill.store.base import Block, Store, Watch
from leasemill.store.notifications import Subscription
from leasemill.store.presence import Presence, Present
from leasemill.store.threads import Threads
from leasemill.worker.processes import codec
from leasemill.worker.processes.channel import MessageChannel
from leasemill.worker.processes.codec import answer_of, pack, unpack_error
from leasemill.worker.processes.messages import AskPresence, AskStore, StoreAnswered, StoreRaised

AnswerT = TypeVar("AnswerT")

log = logging.getLogger("leasemill.worker")

LOOK_S: Final = 0.1
"""How long a wait for something in the worker's store takes: then the caller looks again."""
CALLS_AT_A_TIME: Final = 8


class Requests:
    """Questions to the worker that wait for their answers. Any thread may ask."""

    def __init__(self, channel: MessageChannel) -> None:
        self._channel = channel
        self._numbers = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[StoreAnswered | StoreRaised]] = {}

    def ask(self, question: Callable[[int], AskStore | AskPresence]) -> Any:
        """The worker's answer. A handler that is stopped meanwhile does not wait for it."""
        number = next(self._numbers)
        answer: queue.SimpleQueue[StoreAnswered | StoreRaised] = queue.SimpleQueue()
        self._waiting[number] = answer
        try:
            self._channel.send(question(number))
            reply = answer.get()
        except OSError as error:
            raise Unavailable(f"the worker's process is gone: {error}") from None
        finally:
            del self._waiting[number]
        if isinstance(reply, StoreRaised):
            raise unpack_error(reply.error)
        return answer_of(reply)

    def answered(self, reply: StoreAnswered | StoreRaised) -> None:
        waiting = self._waiting.get(reply.request)
        if waiting is not None:
            waiting.put(reply)


class ForwardingStore(Store):
    """The worker's store, as a handler's process uses it."""

    def __init__(self, requests: Requests, name: str) -> None:
        super().__init__()
        self.name = name
        self.presence = _ForwardedPresence(requests)
        self._requests = requests
        self._threads = Threads(CALLS_AT_A_TIME, "leasemill-forwarding")

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        check(command)
        packed = pack(command)
        return cast(AnswerT, self._requests.ask(lambda number: AskStore(number, packed)))

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        return await asyncio.wrap_future(self._threads.submit(self.run, command))

    def watch(self, queues: Sequence[str]) -> Watch:
        return _LookAgain()

    def watch_end(self, job_id: str) -> Watch:
        return _LookAgain()

    def watch_cancellations(self, wake: Callable[[], None]) -> Subscription:
        raise Invalid(f"a worker cannot run in a handler's process on {self.name}: start it in a process of its own")

    def close(self) -> None:
        """The store is the worker's."""


class _LookAgain:
    """A watch on a store whose notifications do not come here: it returns soon, and the caller looks again."""

    def wait(self, timeout_s: float) -> bool:
        time.sleep(min(timeout_s, LOOK_S))
        return timeout_s > LOOK_S

    async def wait_async(self, timeout_s: float) -> bool:
        await asyncio.sleep(min(timeout_s, LOOK_S))
        return timeout_s > LOOK_S

    def close(self) -> None:
        pass


class _ForwardedPresence:
    """The records of workers, in the worker's store."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def publish(self, worker_id: str, record: bytes) -> WorkerOrder | None:
        order: WorkerOrder | None = self._requests.ask(lambda number: AskPresence(number, "publish", worker_id, record))
        return order

    def records(self) -> list[Present]:
        found = self._requests.ask(lambda number: AskPresence(number, "records"))
        return [Present(*record) for record in found]

    def remove(self, worker_id: str, instance: str | None = None) -> bool:
        return bool(self._requests.ask(lambda number: AskPresence(number, "remove", worker_id, instance=instance)))


class OpenedAtUse(Store):
    """The app's own store: a handler that does not use it needs no connection."""

    def __init__(self, opened: Callable[[], Store], name: str) -> None:
        super().__init__()
        self.name = name
        self._opened = opened

    @property
    def presence(self) -> Presence:  # type: ignore[override]  # only read
        return self._opened().presence

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        return self._opened().run(command)

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        store = await asyncio.to_thread(self._opened)
        return await store.arun(command)

    def watch(self, queues: Sequence[str]) -> Watch:
        return self._opened().watch(queues)

    def watch_end(self, job_id: str) -> Watch:
        return self._opened().watch_end(job_id)

    def watch_cancellations(self, wake: Callable[[], None]) -> Subscription:
        return self._opened().watch_cancellations(wake)

    def using(self, connection: object) -> Store:
        return self._opened().using(connection)

    def block(self, lease: c.Lease, seconds_left: float) -> Block:
        return self._opened().block(lease, seconds_left)

    def joined_block(self, lease: c.Lease, session: object) -> Block:
        return self._opened().joined_block(lease, session)

    def close(self) -> None:
        """The store is the app's."""


# In the worker ---------------------------------------------------------------------------------------------------


def answered(store: Store, question: AskStore | AskPresence) -> tuple[StoreAnswered | StoreRaised, object]:
    """The reply, and the answer in it. Whatever is raised here is raised there: a handler that waits must not hang."""
    try:
        answer = _asked(store, question)
        return codec.answered(question.request, answer), answer
    except Exception as error:  # passed on to the handler's process, whatever it is
        if not isinstance(error, LeasemillError):
            log.exception("a command of a handler's process failed")
        return StoreRaised(question.request, codec.pack_error(error)), None


def _asked(store: Store, question: AskStore | AskPresence) -> object:
    if isinstance(question, AskPresence):
        return _asked_presence(store, question)
    command: c.Command[object] = codec.unpack(question.command)
    return store.run(command)


def _asked_presence(store: Store, question: AskPresence) -> object:
    match question.method:
        case "publish":
            return store.presence.publish(question.worker_id, question.record)
        case "remove":
            return store.presence.remove(question.worker_id, question.instance)
        case _:
            return [tuple(record) for record in store.presence.records()]
