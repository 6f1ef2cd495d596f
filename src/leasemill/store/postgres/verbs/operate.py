"""What operators do: cancel, redrive, purge, pause, resume, set_policy; decided by the kernel."""

from __future__ import annotations

from msgspec.structs import replace

from leasemill.kernel import commands as c
from leasemill.kernel.model import ENDED_STATES, JobState
from leasemill.kernel.verbs.redrive import redriven_states
from leasemill.store.postgres import reading
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.exact.decide import Concern, decide
from leasemill.store.postgres.wire.connections import Connection


def cancel(calls: Calls, command: c.Cancel) -> list[c.CancelOutcome]:
    return calls.decide(command, Concern(command.job_ids))


def redrive(calls: Calls, command: c.Redrive) -> c.Operated:
    return _sweep(calls, command, redriven_states(command), makes_lanes=True)


def purge(calls: Calls, command: c.Purge) -> c.Operated:
    return _sweep(calls, command, ENDED_STATES, makes_lanes=False)


def change_queue(calls: Calls, command: c.Pause | c.Resume | c.SetPolicy) -> None:
    calls.decide(command, Concern(queues=[command.queue]))


def _sweep(calls: Calls, command: c.Redrive | c.Purge, states: frozenset[JobState], *, makes_lanes: bool) -> c.Operated:
    """O6: found by reading, then decided under locks: what changed meanwhile is left alone."""
    database = calls.database

    def work(connection: Connection) -> c.Operated:
        jobs, after = reading.fitting(database, connection, command.filter, states, command.limit, command.after)
        ids = tuple(job.spec.id for job in jobs)
        if not ids:
            return c.Operated((), after)
        narrowed = replace(command, filter=replace(command.filter, job_ids=ids))
        operated = decide(database, connection, narrowed, Concern(ids, makes_lanes=makes_lanes))
        return c.Operated(operated.job_ids, after, operated.held_back)

    operated = calls.connections.run(work, is_repeatable=False)
    calls.follow_decision()
    return operated
