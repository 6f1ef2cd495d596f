"""commit: the marker, the result and the follow-ups, in one transaction."""

from __future__ import annotations

from leasemill.kernel import commands as c
from leasemill.kernel.transitions.unique import key_of
from leasemill.kernel.verbs.commit import followup_specs
from leasemill.store.postgres.context import VerbContext
from leasemill.store.postgres.exact.decide import LockSet, decide
from leasemill.store.postgres.known import Known
from leasemill.store.postgres.statements import Execute
from leasemill.store.postgres.steps import BEGIN, COMMIT, ROLLBACK, Steps, Verb, send, transact
from leasemill.store.postgres.verbs.enqueue import check_queues, inserted, use_queues


def commit(context: VerbContext, command: c.Commit) -> Verb[c.CommitOutcome]:
    """Follow-ups in lanes are admitted in a transaction after this one: lanes are locked before leases, never after."""
    known = context.known
    channel = context.notifier.channel() if command.followups else None
    outcome = yield from transact(lambda _: _commit(known, command, channel))
    if any(followup.lane is not None for followup in command.followups):
        yield from context.maintenance.admit()
    context.signal.notify()
    return outcome


def settle(known: Known, command: c.Commit) -> Steps[c.CommitOutcome]:
    """How a commit ended, decided by the kernel: the refusal, which is recorded, or what was committed before."""
    return decide(known, command, _concern_of(command))


def _commit(known: Known, command: c.Commit, channel: str | None) -> Steps[c.CommitOutcome]:
    if command.followups:
        outcome = yield from _commit_all(known, command, channel)
    else:
        (((is_committed,),),) = yield from send(_mark(command))
        outcome = c.Committed(command.job_id, ()) if is_committed else None
    return outcome or (yield from settle(known, command))


def _commit_all(known: Known, command: c.Commit, channel: str | None) -> Steps[c.CommitOutcome | None]:
    """None: the lease is not held, or has committed before."""
    followups = followup_specs(command)
    _, ((is_committed,),) = yield from send(BEGIN, _mark(command))
    if not is_committed:
        yield from send(ROLLBACK)
        return None
    names = yield from check_queues(known, followups)
    outcomes = yield from inserted(followups, channel, by=command.job_id)
    conflict = next((outcome for outcome in outcomes if isinstance(outcome, c.Conflict)), None)
    if conflict is not None:  # X6: one conflict refuses the whole commit
        yield from send(ROLLBACK)
        return conflict
    yield from use_queues(known, names, followups, outcomes)
    yield from send(COMMIT)
    return c.Committed(command.job_id, tuple(outcome.job_id for outcome in outcomes))  # U5: or the holder's


def _mark(command: c.Commit) -> Execute:
    """Marks the job if the lease is held and has not committed before; returns whether it did."""
    result = None if command.result is None else command.result.decode()
    return Execute("commit_lease", {"id": command.job_id, "token": command.token, "result": result})


def _concern_of(command: c.Commit) -> LockSet:
    """L6: a commit that is repeated returns the holders of its follow-ups' keys."""
    keys = {spec.id: key for spec in followup_specs(command) if (key := key_of(spec)) is not None}
    return LockSet([command.job_id, *keys], keys=list(keys.values()))
