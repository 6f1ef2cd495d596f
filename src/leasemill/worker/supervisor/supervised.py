"""The worker's side of the control channel.

A process says hello when its app is imported and its store is open, and waits for `run`: until then it claims nothing,
so another of the same id may still be at work. What must never happen: a process that outlives its supervisor by more
than its shutdown timeout. The supervisor's end of the channel closes with it, however it ended, and is noticed here.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from leasemill.errors import Invalid
from leasemill.worker.process import Retirement
from leasemill.worker.prometheus.measures import Measures
from leasemill.worker.prometheus.samples import Samples, encoded
from leasemill.worker.supervisor.channel import Channel, Message
from leasemill.worker.worker import Worker

log = logging.getLogger("leasemill.worker")


class Supervised:
    """Reads what the supervisor asks for, in a thread, from before the app is imported."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._channel = Channel(socket.socket(fileno=descriptor), send_waits=True)
        self._worker: Worker | None = None
        self._stops = 0
        self._may_run = threading.Event()
        self.on: dict[str, Callable[[Message], None]] = {"stop": self._stop_asked, "run": self._run_asked}
        """What to do when the supervisor asks for it, by the message's `do`; called in the channel's thread."""
        for number in (signal.SIGINT, signal.SIGHUP):
            # A terminal sends them to all its processes: the supervisor notices them for all.
            signal.signal(number, lambda *_: None)
        threading.Thread(target=self._read, name="leasemill-control", daemon=True).start()

    def await_run(self, worker: Worker, retirement: Retirement, processes: int) -> None:
        """Report that the worker is ready, and wait until it may run."""
        if worker.app.store.name.startswith("memory:"):
            raise Invalid(
                "a memory: store lives inside one process: it cannot be shared by several, nor outlive one that is "
                "replaced. Name another store with --url, or leave out --processes, --max-jobs, --max-memory"
            )

        def enough() -> None:
            self.send({"is": "retiring"})
            worker.retire()

        retirement.on_enough = enough
        worker.presence.join(worker.id.rpartition(".")[0], processes)
        worker.presence.on_first = lambda: self.send({"is": "up", "facts": asdict(worker.facts)})
        worker.commands.stop = lambda: self.send({"is": "dismissed"})  # so that no other takes its place
        worker.on_start = lambda *_: None  # the supervisor logs one line for all
        self.on["death"] = partial(self._death, worker)
        self._worker = worker
        self.send({"is": "hello", "worker": worker.id, "instance": worker.presence.instance})
        self._may_run.wait()

    def share(self, measures: Measures) -> None:
        """Send what is counted here when the supervisor asks for it, and a last time when the worker has ended."""
        lock, sent = threading.Lock(), Samples()

        def send() -> None:
            nonlocal sent
            with lock:  # what is sent is sent once
                now, before = measures.counters(), sent
                queues, queues_for_s = measures.queues()
                self.send(
                    {
                        "is": "samples",
                        "counters": encoded(now.since(before)),
                        "gauges": encoded(measures.gauges()),
                        "queues": encoded(queues),
                        "queues_for_s": queues_for_s,
                    }
                )
                sent = now

        self.on["samples"] = lambda _: send()
        measures.on_end = send

    def send(self, message: Message) -> None:
        """Send a message to the supervisor, from any thread."""
        self._channel.send(message)

    def stop_once(self) -> None:
        """Stop because of a signal. A second one does not hurry the worker: it may have been sent to the whole process
        group, so only the supervisor's request counts."""
        if self._worker is not None and not self._worker.shutdown.is_requested:
            self._worker.stop()

    def _read(self) -> None:
        while (messages := self._channel.receive()) is not None:
            for message in messages:
                self._do(message)
        log.warning("the supervisor is gone: stopping")
        self._stop()

    def _do(self, message: Message) -> None:
        what = message["do"]
        if what in self.on:
            self.on[what](message)
        else:
            log.error("unknown request from the supervisor: %r", what)

    def _stop_asked(self, message: Message) -> None:
        self._stops += 1
        self._stop()

    def _death(self, worker: Worker, message: Message) -> None:
        instance = message["instance"]
        confirm = partial(self.send, {"is": "recorded", "instance": instance})
        worker.deaths.ended(message["worker"], instance, message["cause"], confirm)

    def _run_asked(self, message: Message) -> None:
        self._may_run.set()

    def _stop(self) -> None:
        worker = self._worker
        if worker is None:
            os._exit(0)  # the app is being imported: nothing is held, and nobody waits for what it does
        if self._stops > 1:
            worker.stop(now=True)
        else:
            self.stop_once()
        self._may_run.set()
