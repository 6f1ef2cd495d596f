"""`JobEvent`: what a hook is given about a run of a job: that it starts, or how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from leasemill.api.logs import job_fields


class JobEvent(Struct, frozen=True, eq=False, omit_defaults=True, repr_omit_defaults=True):
    """One run of a job, when it starts or when it is known how it ended. Which hook sets what: docs/guides/hooks.md."""

    job_id: str
    kind: str
    queue: str
    lane: str | None
    attempt: int
    """How many times the job has been claimed, including this time."""
    worker: str
    headers: Mapping[str, str]
    """The headers that travel with the job, in addition to its arguments."""
    state: Any = None
    """What the app's lifespan yielded in the worker."""
    seconds: float | None = None
    """How long the handler ran."""
    error: str | None = None
    """Why the run failed, as the job's record has it."""
    exception: BaseException | None = None
    """What the handler raised; None: it timed out, its process died, its arguments do not fit, or its result."""
    fingerprint: str | None = None
    """The group of this failure, as in `leasemill jobs failures`."""
    next_at: datetime | None = None
    """When the job is due again, in UTC, if the failure has set a time."""
    reason: str | None = None
    """Why the lease was lost."""

    @property
    def log_fields(self) -> dict[str, Any]:
        return job_fields(self.job_id, self.kind, self.attempt, self.worker, self.headers)
