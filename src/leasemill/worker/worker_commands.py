"""What operators ask of this process of a worker, and how it obeys: quiet, resume, stop. Rule O13.

An order comes with the answer to a heartbeat record (`WorkerPresence.publish`). What must never happen here: a stop
that hurries a worker which is stopping already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import assert_never

from leasemill.kernel.model import Order, WorkerOrder
from leasemill.worker.runner import Runner
from leasemill.worker.shutdown import Shutdown
from leasemill.worker.store_loop import StoreLoop

log = logging.getLogger("leasemill.worker")


class WorkerCommands:
    """Carries out the operators' orders to one worker."""

    def __init__(self, worker_id: str, shutdown: Shutdown, stop: Callable[[], None]) -> None:
        self.stop = stop
        """Shut down; a supervised process asks its supervisor instead. Called on the event loop."""
        self._worker_id = worker_id
        self._shutdown = shutdown
        self._parts: tuple[StoreLoop, Runner] | None = None

    def steer(self, loop: StoreLoop, runner: Runner) -> None:
        """These claim, or do not."""
        self._parts = loop, runner

    def obey(self, order: WorkerOrder) -> None:
        """Carry out an order. Called on the event loop, once for each."""
        assert self._parts is not None
        loop, runner = self._parts
        fields = {"worker": self._worker_id}
        log.warning("ordered to %s by %s: %s", MEANT[order.order], order.by, order.reason, extra=fields)
        match order.order:
            case Order.QUIET:
                runner.rest()
                loop.wake()
            case Order.RESUME:
                runner.resume()
                loop.changed()
            case Order.STOP:
                if not self._shutdown.is_requested:
                    self.stop()
            case _:
                assert_never(order.order)


MEANT = {Order.QUIET: "be quiet", Order.RESUME: "resume", Order.STOP: "stop"}
