"""Explains in sentences why a job is in its state: why it waits, who has it, why it ran twice, how it ended. Pure.

Every sentence follows from recorded facts: the job with its executions and refusals, its queue, its lane, what
operators did, and which workers sent a heartbeat. What must never happen here: a sentence that the record does not
support. Where the record was cut (I8, O8), the sentence says so.
"""

from __future__ import annotations

from enum import StrEnum
from shlex import quote

from msgspec import Struct

from leasemill.api.outcomes import INVALID_RESULT
from leasemill.kernel.model import (
    NEVER,
    AbortReason,
    Execution,
    ExecutionStatus,
    Job,
    JobState,
    QueueMode,
    Verb,
)
from leasemill.kernel.read.filter import last_error
from leasemill.operator.facts import AtWork, JobFacts
from leasemill.operator.history import MISMATCH, cancellation, error_line, error_of, history, is_mismatch, mismatches
from leasemill.operator.relations import relations, shutting
from leasemill.operator.wording import counted, instant, listed, span, times


class Situation(StrEnum):
    """A job's condition in one value, for programs."""

    DUE = "due"
    NOT_DUE = "not due"
    RETRY = "waits for a retry"
    GIVEN_BACK = "given back"
    BEHIND = "behind its lane's head"
    PAUSED = "queue paused"
    UNSERVED = "no worker serves its queue"
    NO_PLACE = "waits for a place under a limit"
    NOT_YET = "waits for a rate"
    MISMATCH = "does not match the workers' code"
    WAITS_FOR_OWNER = "waits for its owner"
    UNCLAIMABLE = "can never be claimed"
    LEASED = "leased"
    RUNNING = "running"
    EXPIRED = "lease ran out"
    COMMITTED = "committed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    QUARANTINED = "quarantined"
    CANCELLED = "cancelled"
    WAITS_FOR_GROUP = "not enqueued: waits for its group"
    WAITS_FOR_CHAIN = "not enqueued: waits for the job before it"
    NO_TICK = "its schedule made no job"


class Explanation(Struct, frozen=True):
    """`now`: what holds and what comes next; `history`: how it came to this; `advice`: what an operator can do.

    `state`: None if there is no such job yet.
    """

    job_id: str
    state: JobState | None
    situation: Situation
    now: list[str]
    history: list[str]
    advice: list[str]
    headers: dict[str, str] = {}


def explain(facts: JobFacts) -> Explanation:
    job = facts.job
    situation, now, advice = _present(facts)
    sentences = [_headline(job), *now, *relations(facts)]
    return Explanation(
        job.spec.id, job.state, situation, sentences, list(history(facts)), advice, job.spec.headers or {}
    )


def _headline(job: Job) -> str:
    spec = job.spec
    lane = "" if spec.lane is None else f", lane {spec.lane!r}"
    return f"Job {spec.id!r} ({spec.kind}, queue {spec.queue!r}{lane}) is {job.state.value.upper()}."


_Present = tuple[Situation, list[str], list[str]]


def _present(facts: JobFacts) -> _Present:
    match facts.job.state:
        case JobState.READY:
            return _ready(facts)
        case JobState.LEASED:
            return _leased(facts)
        case JobState.SUCCEEDED:
            return Situation.SUCCEEDED, [_success(facts.job.executions[-1])], []
        case JobState.FAILED:
            return _failed(facts)
        case JobState.DEAD:
            return _quarantined(facts)
        case JobState.CANCELLED:
            return _cancelled(facts)


# READY: what it waits for --------------------------------------------------------------------------------------


def _ready(facts: JobFacts) -> _Present:
    job = facts.job
    if facts.queue is not None and facts.queue.mode is QueueMode.ACQUIRE and job.spec.offset is None:
        text = f"Queue {job.spec.queue!r} is used with acquire, and this job has no offset: it can never be claimed."
        advice = [f"leasemill jobs cancel {job.spec.id} --reason …", "Enqueue it into a queue that workers claim from."]
        return Situation.UNCLAIMABLE, [text], advice
    if facts.queue is not None and facts.queue.mode is QueueMode.ACQUIRE:
        text = f"Queue {job.spec.queue!r} is used with acquire: no worker claims from it; the job waits for its owner."
        advice = ["Check the program that acquires the offsets of this queue: it has not acquired this one again."]
        return Situation.WAITS_FOR_OWNER, [text], advice
    situation, waits, advice = _waits(facts)
    if facts.queue is not None and facts.queue.is_paused:
        resume = f"leasemill queues resume {job.spec.queue} --reason …"
        return Situation.PAUSED, [_paused(facts), *waits[:1]], [resume]
    return situation, waits, advice


def _waits(facts: JobFacts) -> _Present:
    """Return what the job waits for if its queue is not paused."""
    job = facts.job
    head = None if facts.lane is None else facts.lane.head
    if head is not None and head.spec.id != job.spec.id:
        return Situation.BEHIND, [_behind(facts, head)], _behind_advice(head)
    if job.available_at > facts.now:
        return _not_due(facts)
    return _due(facts)


def _paused(facts: JobFacts) -> str:
    name = facts.job.spec.queue
    pause = next((one for one in facts.actions if one.verb is Verb.PAUSE and one.target == name), None)
    who = "by an operator" if pause is None else f"at {instant(pause.at)} by {pause.by} ({pause.reason})"
    return f"Queue {name!r} was paused {who}: no worker claims its jobs until it is resumed."


def _behind(facts: JobFacts, head: Job) -> str:
    return f"It waits in its lane behind {head.spec.id!r}, which {what_it_does(head, facts.now)}."


def what_it_does(head: Job, now: int) -> str:
    last = head.executions[-1] if head.executions else None
    if head.state is JobState.LEASED and last is not None:
        return f"worker {last.worker} has held since {instant(last.leased_at)}"
    if head.blocks_lane:
        how = "failed for good" if head.state is JobState.FAILED else "was quarantined"
        return f"{how} at {instant(head.updated_at)} and blocks the lane until an operator acts"
    if head.available_at > now:
        what = "waits for its retry" if _failed_last(head) else "is not due"
        return f"{what} until {instant(head.available_at)} ({_in(head.available_at, now)})"
    return f"has been due since {instant(head.available_at)} and waits for a worker"


def _behind_advice(head: Job) -> list[str]:
    if head.blocks_lane:
        lane = f"{head.spec.queue} {quote(head.spec.lane or '')}"
        return [f"leasemill lanes unblock {lane} --how redrive|cancel|purge --reason …"]
    return [f"leasemill jobs explain {quote(head.spec.id)}"]


def _not_due(facts: JobFacts) -> _Present:
    job = facts.job
    until = f"until {instant(job.available_at)} ({_in(job.available_at, facts.now)})"
    last = job.executions[-1] if job.executions else None
    if last is None or job.redriven_attempt == job.attempt:
        return Situation.NOT_DUE, [f"It is scheduled: not due {until}."], []
    if _failed_last(job):
        text = (
            f"It waits for retry {job.retries} of {last.terms.max_retries} {until}. The last error: {error_of(last)}."
        )
        return Situation.RETRY, [text], []
    if is_mismatch(last):
        return _mismatch(job, f"It is not due again {until}.")
    return Situation.GIVEN_BACK, [f"Its handler released it: it is not due {until}."], []


def _mismatch(job: Job, next_offer: str) -> _Present:
    tries = mismatches(job)
    workers = len({one.worker for one in tries})
    why = error_of(tries[-1]).removeprefix(MISMATCH)
    how_often = f"{counted(workers, 'worker')} tried, {times(len(tries))} in total"
    sentences = [
        f"It does not match the code of the workers that claimed it: {why}.",
        f"{how_often}, first at {instant(tries[0].leased_at)}. {next_offer}",
    ]
    advice = f"Run a worker whose code has kind {job.spec.kind!r} with these arguments, or cancel the job."
    return Situation.MISMATCH, sentences, [advice]


def _due(facts: JobFacts) -> _Present:
    job = facts.job
    kept, advice = shutting(facts.limits)
    if kept:
        is_full = any(fact.is_full for fact in facts.limits)
        since = f"It has been due since {instant(job.available_at)}."
        return Situation.NO_PLACE if is_full else Situation.NOT_YET, [since, *kept], advice
    text = f"It has been due since {instant(job.available_at)} and waits for a free worker."
    if job.executions and job.redriven_attempt != job.attempt and is_mismatch(job.executions[-1]):
        return _mismatch(job, text)
    if facts.workers is None:
        return Situation.DUE, [text], []
    serving = [one for one in facts.workers if job.spec.queue in one.queues]
    awake = [one.worker for one in serving if not one.is_quiet and not one.is_stopping]
    if awake:
        return Situation.DUE, [text, f"Its queue is served by {listed(awake)}."], []
    why, remedy = _unserved(job.spec.queue, serving, len(facts.workers))
    return Situation.UNSERVED, [text, f"No worker will claim it now: {why}."], [remedy]


def _unserved(queue: str, serving: list[AtWork], running: int) -> tuple[str, str]:
    """Return why no worker claims from the queue, and what to do: none serves it, or none of those takes new jobs."""
    start = f"leasemill worker MODULE:APP --queue {queue}"
    if not serving:
        return f"{_none_serves(running)} queue {queue!r}", start
    quiet = [one.worker for one in serving if not one.is_stopping]
    how = "stopping" if not quiet else "quiet" if len(quiet) == len(serving) else "quiet or stopping"
    why = f"those that serve queue {queue!r} are {how}, {listed([one.worker for one in serving])}"
    return why, f"leasemill workers resume {quote(quiet[0])} --reason …" if quiet else start


def _none_serves(running: int) -> str:
    match running:
        case 0:
            return "no running worker serves"
        case 1:
            return "1 worker is running, but it does not serve"
        case _:
            return f"{running} workers are running, but none serves"


# LEASED: who has it --------------------------------------------------------------------------------------------


def _leased(facts: JobFacts) -> _Present:
    execution = facts.job.executions[-1]
    who = f"Worker {execution.worker} has held it as attempt {execution.attempt} since {instant(execution.leased_at)}"
    sentences: list[str]
    match execution.status:
        case ExecutionStatus.COMMITTED:
            situation = Situation.COMMITTED
            took_effect = f"It committed at {instant(execution.committed_at)}; only its end is not reported yet."
            sentences = [f"{who}.", f"{took_effect} It can only succeed now, and is not run again."]
        case ExecutionStatus.STARTED:
            situation = Situation.RUNNING
            sentences = [f"{who}; its handler started at {instant(execution.started_at)}."]
        case _:
            situation = Situation.LEASED
            sentences = [f"{who}; its handler is not recorded as started yet."]
    sentences.append(_lease(facts, execution))
    if execution.expires_at <= facts.now and situation is not Situation.COMMITTED:
        situation = Situation.EXPIRED
    known = facts.workers is None or any(one.worker == execution.worker for one in facts.workers)
    if not known and execution.expires_at != NEVER:
        sentences.append(f"Worker {execution.worker} has sent no heartbeat lately: it may be dead or stopped.")
    return situation, sentences, []


def _lease(facts: JobFacts, execution: Execution) -> str:
    if execution.expires_at == NEVER:
        return "Its lease never expires: it is held until its owner reports."
    if execution.expires_at > facts.now:
        left = _in(execution.expires_at, facts.now)
        return f"Its lease expires at {instant(execution.expires_at)} ({left}) unless a heartbeat extends it."
    then = (
        "the next search for expired leases records it as succeeded"
        if execution.status is ExecutionStatus.COMMITTED
        else "any worker can claim it now"
    )
    return f"Its lease expired at {instant(execution.expires_at)}: {then}."


# The ends ------------------------------------------------------------------------------------------------------


def _success(execution: Execution) -> str:
    by = f"Attempt {execution.attempt} by worker {execution.worker} took effect at {instant(execution.committed_at)}"
    ended = instant(execution.finished_at)
    match execution.ended_by:
        case Verb.ACK:
            return f"{by} and reported its end at {ended}."
        case Verb.EXPIRE:
            return f"{by}; its end was never reported, so the job was finished at {ended}, after its lease had expired."
        case Verb.DEATH:
            return f"{by}; its end was never reported: {error_of(execution)}, so the job was finished at {ended}."
        case Verb.NACK:
            return f"{by}; the handler failed after that ({error_of(execution)}), which changed nothing."
        case Verb.CANCEL:
            return f"{by}; an operator cancelled it at {ended}, after its commit, which only finished it."
        case Verb.RELEASE:
            return f"{by}; it was released at {ended}, after its commit, which only finished it."
        case None:
            return f"{by}."


def _failed(facts: JobFacts) -> _Present:
    job = facts.job
    last = job.executions[-1]
    allowed = last.terms.max_retries
    if (last.error or "").startswith(MISMATCH):
        why = "no worker's code had matched it within the mismatch timeout"
    elif (last.error or "").startswith(INVALID_RESULT):
        why = "an invalid result is final: its handler had run, so it is not run again"
    elif job.retries >= allowed:
        why = (
            f"its {counted(allowed, 'retry was', 'retries were')} used up" if allowed else "its policy allows no retry"
        )
    elif (last.error or "").startswith("Fail"):
        why = "its handler reported that it can never succeed"
    else:
        why = "no retry was allowed: by its handler, or by the declaration of its kind, Retry(on=..., never_on=...)"
    sentences = [f"Attempt {last.attempt} by worker {last.worker} failed at {instant(last.finished_at)}, and {why}."]
    sentences += _blocking(facts)
    return Situation.FAILED, [*sentences, f"The error: {error_line(last_error(job))}."], _redrive_advice(job)


def _cancelled(facts: JobFacts) -> _Present:
    job = facts.job
    advice = [f"leasemill jobs redrive --id {quote(job.spec.id)} --include-cancelled --reason …"]
    return Situation.CANCELLED, [cancellation(job)], advice


def _quarantined(facts: JobFacts) -> _Present:
    job = facts.job
    last = job.executions[-1]
    runs = counted(job.expirations, "run")
    text = (
        f"It was quarantined at {instant(last.finished_at)}: {runs} ended without a report, the most "
        "its policy allows. The job may be killing its workers."
    )
    return Situation.QUARANTINED, [text, *_blocking(facts)], _redrive_advice(job)


def _blocking(facts: JobFacts) -> list[str]:
    if not facts.job.blocks_lane:
        return []
    behind = "" if facts.lane is None else f"; {counted(facts.lane.waiting, 'job')} behind it"
    return [f"It blocks lane {facts.job.spec.lane!r} until an operator acts{behind}."]


def _redrive_advice(job: Job) -> list[str]:
    if job.blocks_lane:
        return _behind_advice(job)
    return [f"leasemill jobs redrive --id {quote(job.spec.id)} --reason …"]


def _failed_last(job: Job) -> bool:
    return bool(job.executions) and job.executions[-1].reason is AbortReason.FAILED and job.retries > 0


def _in(at: int, now: int) -> str:
    return f"in {span(at - now)}"
