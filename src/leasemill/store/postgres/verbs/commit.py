"""commit: the marker, the result and the follow-ups, in one transaction."""

from __future__ import annotations

from leasemill.kernel import commands as c
from leasemill.kernel.transitions.unique import key_of
from leasemill.kernel.verbs.commit import followup_specs
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.exact.decide import Concern, decide
from leasemill.store.postgres.verbs.enqueue import check_enqueue_queues, insert, use_queues
from leasemill.store.postgres.wire.connections import Connection


def run(calls: Calls, command: c.Commit) -> c.CommitOutcome:
    database = calls.database
    channel = calls.notifier.channel() if command.followups else None

    def work(connection: Connection) -> c.CommitOutcome:
        outcome = commit(database, connection, command, channel=channel)
        return outcome or decide(database, connection, command, concern_of(command))

    outcome = calls.connections.run(work)
    if any(followup.lane is not None for followup in command.followups):
        calls.maintenance.admit()
    calls.signal.notify()
    return outcome


def commit(
    database: Database, connection: Connection, command: c.Commit, *, channel: str | None
) -> c.CommitOutcome | None:
    """None: not held, or committed before.

    Follow-ups in lanes are admitted in a transaction after this one: lanes are locked before leases, never after.
    """
    followups = followup_specs(command)
    if not followups:
        return c.Committed(command.job_id, ()) if mark_committed(database, connection, command) else None
    with connection.transaction() as transaction:
        if not mark_committed(database, connection, command):
            return None
        names = check_enqueue_queues(database, connection, followups)
        outcomes = insert(database, connection, followups, channel, by=command.job_id)
        conflict = next((outcome for outcome in outcomes if isinstance(outcome, c.Conflict)), None)
        if conflict is not None:
            transaction.force_rollback = True  # X6: one conflict refuses the whole commit
            return conflict
        use_queues(database, connection, names, followups, outcomes)
    return c.Committed(command.job_id, tuple(outcome.job_id for outcome in outcomes))  # U5: or the holder's


def concern_of(command: c.Commit) -> Concern:
    """L6: a commit that is repeated returns the holders of its follow-ups' keys."""
    keys = {spec.id: key for spec in followup_specs(command) if (key := key_of(spec)) is not None}
    return Concern([command.job_id, *keys], keys=list(keys.values()))


def mark_committed(database: Database, connection: Connection, command: c.Commit) -> bool:
    result = None if command.result is None else command.result.decode()
    given = {"id": command.job_id, "token": command.token, "result": result}
    (is_committed,) = database.one(connection, "commit", given)
    return bool(is_committed)
