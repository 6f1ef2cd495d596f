"""`.options(...)`: what one enqueue may override of the declaration. Refused where it is written if it cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict

import msgspec
from msgspec.structs import replace

from leasemill.api.policy import Duration, LeasePreset, is_whole, microseconds, run_policy
from leasemill.api.retry import RetryChoice, retry_of
from leasemill.api.unique import check_own_key
from leasemill.errors import Invalid
from leasemill.kernel.bounds import check_headers, check_name, check_string
from leasemill.kernel.model import Policy

_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


class EnqueueOptions(TypedDict, total=False):
    """The options of one enqueue. None is the same as leaving it out."""

    delay: Duration | None
    run_at: datetime | None
    priority: int | None
    job_id: str | None
    queue: str | None
    lane: str | None
    retry: RetryChoice | None
    lease: Duration | LeasePreset | None
    timeout: Duration | None
    headers: Mapping[str, str] | None
    unique: str | None


class Options(msgspec.Struct, frozen=True):
    """The options of the jobs that are enqueued through a `JobType`."""

    delay_us: int = 0
    run_at: int | None = None
    priority: int | None = None
    job_id: str | None = None
    queue: str | None = None
    lane: str | None = None
    policy: Policy | None = None
    """The job's own: it goes before the queue's and the kind's (I5)."""
    headers: dict[str, str] | None = None
    unique: str | None = None

    def changed(self, given: EnqueueOptions) -> Options:
        """These options with others in their place."""
        if unknown := sorted(given.keys() - EnqueueOptions.__annotations__.keys()):
            raise Invalid(f"there is no option {unknown[0]!r}: use {', '.join(EnqueueOptions.__annotations__)}")
        delay, run_at = given.get("delay"), given.get("run_at")
        if delay is not None and run_at is not None:
            raise Invalid("delay and run_at exclude each other: use one of them")
        changes: dict[str, Any] = {}
        if delay is not None:
            changes |= {"delay_us": microseconds("delay", delay), "run_at": None}
        if run_at is not None:
            changes |= {"run_at": _instant(run_at), "delay_us": 0}
        if (priority := given.get("priority")) is not None:
            changes["priority"] = check_priority(priority)
        if (job_id := given.get("job_id")) is not None:
            check_string("job_id", job_id)
            changes["job_id"] = job_id
        if (queue := given.get("queue")) is not None:
            check_name("queue", queue)
            changes["queue"] = queue
        if (lane := given.get("lane")) is not None:
            check_string("lane", lane)
            changes["lane"] = lane
        if (headers := given.get("headers")) is not None:
            check_headers(copied := dict(headers))
            changes["headers"] = copied
        if (unique := given.get("unique")) is not None:
            changes["unique"] = check_own_key(unique)
        retry, lease, timeout = given.get("retry"), given.get("lease"), given.get("timeout")
        if retry is not None or lease is not None or timeout is not None:
            own = _own_policy(retry, lease, timeout)
            changes["policy"] = own if self.policy is None else _over(own, self.policy)
        return replace(self, **changes)


def _own_policy(retry: RetryChoice | None, lease: Duration | LeasePreset | None, timeout: Duration | None) -> Policy:
    chosen = retry_of(retry)
    if chosen.on is not None or chosen.never_on is not None:
        raise Invalid(
            ".options(retry=...): on and never_on name classes, which do not travel with a job; write them in "
            "@app.job(retry=Retry(...))"
        )
    return run_policy(chosen.policy(), lease, timeout)


def _over(policy: Policy, other: Policy) -> Policy:
    """A policy, with what it leaves out taken from the other."""
    asked = {name: value for name in Policy.__struct_fields__ if (value := getattr(policy, name)) is not None}
    return replace(other, **asked)


def check_priority(priority: int) -> int:
    if not is_whole(priority) or not 0 <= priority <= 9:
        raise Invalid(f"priority is {priority!r}; write a whole number from 0 to 9, higher runs first")
    return priority


def _instant(run_at: datetime) -> int:
    if not isinstance(run_at, datetime):
        raise Invalid(f"run_at is {run_at!r}; write a datetime with a time zone: datetime(..., tzinfo=UTC)")
    if run_at.tzinfo is None or run_at.utcoffset() is None:
        raise Invalid(f"run_at {run_at.isoformat()} has no time zone; write datetime(..., tzinfo=UTC) or .astimezone()")
    return (run_at - _EPOCH) // timedelta(microseconds=1)
