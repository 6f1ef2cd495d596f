"""The steps of tests about groups."""

from __future__ import annotations

from typing import Any, Final

from leasemill.kernel.commands import GroupView
from leasemill.kernel.model import ChainedJob, Rules
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    enqueue_many,
    every_job,
)

GROUP: Final = "group"
CALLBACKS: Final = "callbacks"
MEMBER: Final = Rules(group=GROUP)
THEN: Final = ChainedJob(CALLBACKS, "then", b'{"of":"all"}')
ON_END: Final = ChainedJob(CALLBACKS, "end")


def create(harness: Harness, group_id: str = GROUP, **fields: Any) -> GroupView:
    fields = {"then": THEN, "on_end": ON_END} | fields
    return harness.store.create_group(group_id, **fields).group


def seal(harness: Harness, group_id: str = GROUP) -> GroupView:
    return harness.store.seal_group(group_id)


def with_members(harness: Harness, *job_ids: str, is_sealed: bool = True, **fields: Any) -> None:
    create(harness)
    enqueue_many(harness, *job_ids, rules=MEMBER, **fields)
    if is_sealed:
        seal(harness)


def group_of(harness: Harness, group_id: str = GROUP) -> GroupView:
    group = harness.store.group(group_id)
    assert group is not None, f"there is no group {group_id}"
    return group


def counts(harness: Harness, group_id: str = GROUP) -> tuple[int, int, int, int, int, int]:
    """Total, succeeded, failed, dead, cancelled, unfinished."""
    one = group_of(harness, group_id)
    return one.total, one.succeeded, one.failed, one.dead, one.cancelled, one.unfinished


def callbacks(harness: Harness) -> list[str]:
    """The callbacks there are."""
    return sorted(job.spec.id for job in every_job(harness) if job.spec.queue == CALLBACKS)


NONE: Final[list[str]] = []
END: Final = [f"{GROUP}/end"]
BOTH: Final = [f"{GROUP}/end", f"{GROUP}/then"]
