"""The line that a worker logs when it starts: what it serves, with how many slots."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import Final

from leasemill.api.logs import DETAILS
from leasemill.operator.wording import counted, listed

log = logging.getLogger("leasemill.worker")

NAMES_SHOWN: Final = 20
"""Queues and kinds named when the worker starts."""


@dataclass(frozen=True, slots=True)
class StartFacts:
    version: str
    store: str
    queues: list[str]
    kinds: list[str]
    slots: int


def log_started(worker_id: str, facts: StartFacts, processes: int | None = None) -> None:
    """One line for the worker, however many processes it has; None: it is one process without a supervisor."""
    slots = counted(facts.slots, "slot")
    log.info(
        "worker started: leasemill %s, store %s, queues %s, kinds %s, %s",
        facts.version,
        facts.store,
        listed(facts.queues, NAMES_SHOWN),
        listed(facts.kinds, NAMES_SHOWN) or "none",
        slots if processes is None else f"{counted(processes, 'process', 'processes')} × {slots}",
        extra={
            "worker": worker_id,
            DETAILS: {
                **dataclasses.asdict(facts),
                "queues": facts.queues[:NAMES_SHOWN],
                "kinds": facts.kinds[:NAMES_SHOWN],
                **({} if processes is None else {"processes": processes}),
            },
        },
    )
