"""What a handler's process asks of the worker's store."""

from __future__ import annotations

import logging

from leasemill.errors import LeasemillError
from leasemill.kernel import commands as c
from leasemill.store.base import Store
from leasemill.worker.processes import codec
from leasemill.worker.processes.messages import AskPresence, AskStore, StoreAnswered, StoreRaised

log = logging.getLogger("leasemill.worker")


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
