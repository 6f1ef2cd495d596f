"""The results of a group's members, read page by page.

The newest members are read first, and no further than the last of them: the callback of a group, which asks for them as
soon as they have ended, does not read through all that is kept.
"""

from __future__ import annotations

from typing import Any, Final

from leasemill.api.command_steps import Steps, Stepwise, ask
from leasemill.api.handle import JobHandle
from leasemill.errors import NotFound
from leasemill.kernel import commands as c
from leasemill.kernel.model import Job
from leasemill.kernel.transitions.groups import then_id
from leasemill.store.base import Store

PAGE: Final = 1_000


@Stepwise
def read_results(store: Store, group_id: str) -> Steps[list[Any]]:
    """The results of a group that is over, in the order in which its members were enqueued."""
    return _results(store, (yield from _members(group_id)))


def _members(group_id: str) -> Steps[list[Job]]:
    group = yield from ask(c.GetGroup(group_id))
    count = 0 if group is None else group.total
    last = ""
    while nested := (yield from ask(c.ListGroups(PAGE, after=last, parent=group_id))):
        count -= len(nested)  # B7: a group in it counts as a member, and is not a job
        last = nested[-1].id
    found: dict[str, Job] = {}
    after: int | None = 0
    while after is not None and len(found) < count:
        page = yield from ask(c.ListJobs(c.JobFilter(group=group_id), PAGE, after, newest_first=True))
        found |= {job.spec.id: job for job in page.jobs}
        after = page.after
    if len(found) < count:
        raise NotFound(
            f"{count - len(found):,} of the {count:,} members of group {group_id!r} are no longer kept: read its "
            "results sooner, in its callback for example, or keep jobs longer (retain_for_s, retain_count in the URL)"
        )
    return list(found.values())


def _results(store: Store, members: list[Job]) -> list[Any]:
    """Of a chain, that of its last job, in the place of its first. The first member without success raises."""
    place: dict[str, int] = {}
    for job in sorted(members, key=lambda job: job.seq):
        own = place.setdefault(job.spec.id, job.seq)
        if _continues(job):
            place[then_id(job.spec.id)] = own
    ordered = sorted(members, key=lambda job: (place[job.spec.id], job.seq))
    handles = [(JobHandle[Any](store, job.spec.id, None), job) for job in ordered]
    return [result for handle, job in handles for result in [handle.result_of(job)] if not _continues(job)]


def _continues(job: Job) -> bool:
    return job.spec.rules is not None and bool(job.spec.rules.chain)
