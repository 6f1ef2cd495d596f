"""Cancel, redrive and purge jobs: those that are named, or everything that matches."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from leasemill.dashboard.bulk_actions import AMONG, BulkVerb, count, narrowed
from leasemill.dashboard.job_filter import filter_fields, selection_of
from leasemill.dashboard.page_types import Done, Given, InputField, OperatorAction, PageContext, Question
from leasemill.errors import Invalid, Refused
from leasemill.kernel import commands as c
from leasemill.kernel.model import ENDED_STATES, UNSUCCESSFUL_STATES, Job, JobState
from leasemill.operator.wording import counted, jobs_per_second, listed

MOST_NAMED: Final = 500
DONE: Final = {BulkVerb.CANCEL: "cancelled", BulkVerb.REDRIVE: "redriven", BulkVerb.PURGE: "purged"}
EFFECTS: Final = {
    BulkVerb.CANCEL: "They end CANCELLED; one that is running is stopped, and its lane goes on.",
    BulkVerb.REDRIVE: "They are READY again and due now, with all their retries. Attempts and history stay.",
    BulkVerb.PURGE: "They are deleted with their history. This cannot be undone.",
}
EFFECTS_ON_ONE: Final = {
    BulkVerb.CANCEL: "It ends CANCELLED. If it is running, it is stopped; if it is in a lane, the lane goes on.",
    BulkVerb.REDRIVE: "It is READY again and due now, with all its retries. Attempts and history stay.",
    BulkVerb.PURGE: "It is deleted with its history. This cannot be undone.",
}


@dataclass(frozen=True, slots=True)
class NamedJobs:
    """An action on jobs that are named by their ids."""

    verb: BulkVerb
    among: frozenset[JobState]
    run: Callable[[PageContext, tuple[str, ...], Given], int]

    def ask(self, context: PageContext) -> Question:
        ids = _ids(context)
        found = context.store.jobs(c.JobFilter(job_ids=ids), limit=len(ids)).jobs
        fit = [job for job in found if job.state in self.among]
        others = len(ids) - len(fit)
        sentences = [(EFFECTS_ON_ONE if len(fit) == 1 else EFFECTS)[self.verb]]
        if others:
            why = _why_not(self.verb, found, self.among)
            sentences.append(f"{counted(others, 'job')} of {len(ids):,} would be left alone{why}.")
        verb = self.verb.value.capitalize()
        what = fit[0].spec.id if len(fit) == 1 else counted(len(fit), "job")
        button = f"{verb} {'job' if len(fit) == 1 else 'jobs'}"
        return Question(
            f"{verb} {what}", sentences, button, examples=[job.spec.id for job in fit], is_possible=bool(fit)
        )

    def act(self, context: PageContext, given: Given) -> Done:
        ids = _ids(context)
        changed = self.run(context, ids, given)
        left = "" if changed == len(ids) else f" {counted(len(ids) - changed, 'job')} left alone."
        return Done(f"{counted(changed, 'job')} {DONE[self.verb]}.{left}")


def _ids(context: PageContext) -> tuple[str, ...]:
    ids = tuple(dict.fromkeys(one for one in context.query.getlist("job") if one))
    if not 0 < len(ids) <= MOST_NAMED:
        raise Invalid(f"choose 1 to {MOST_NAMED} jobs, or act on everything that matches a filter")
    return ids


def _why_not(verb: BulkVerb, found: tuple[Job, ...], among: frozenset[JobState]) -> str:
    states = sorted({job.state.value.upper() for job in found if job.state not in among})
    hint = "; cancel them first" if verb is BulkVerb.PURGE else ""
    return f": {listed(states)}{hint}" if states else ": they are not there any more"


def _cancel(context: PageContext, ids: tuple[str, ...], given: Given) -> int:
    outcomes = context.store.cancel(ids, by=given.by, reason=given.reason)
    return sum(
        isinstance(one, c.Cancelled) and one.state is JobState.CANCELLED and not one.is_repeat for one in outcomes
    )


def _redrive(context: PageContext, ids: tuple[str, ...], given: Given) -> int:
    where = c.JobFilter(job_ids=ids)
    done = context.store.redrive(where, by=given.by, reason=given.reason, limit=len(ids), include_cancelled=True)
    if done.held_back and not done.job_ids:
        holder = done.held_back[0]
        raise Refused(f"job {holder.holder_id} holds the unique key of {holder.job_id}: it cannot be redriven")
    return len(done.job_ids)


def _purge(context: PageContext, ids: tuple[str, ...], given: Given) -> int:
    where = c.JobFilter(job_ids=ids)
    return len(context.store.purge(where, by=given.by, reason=given.reason, limit=len(ids)).job_ids)


NAMED: Final = (
    NamedJobs(BulkVerb.CANCEL, frozenset(JobState) - {JobState.SUCCEEDED, JobState.CANCELLED}, _cancel),
    NamedJobs(BulkVerb.REDRIVE, UNSUCCESSFUL_STATES, _redrive),
    NamedJobs(BulkVerb.PURGE, ENDED_STATES, _purge),
)


# Everything that matches -----------------------------------------------------------------------------------------


def _ask_all(verb: BulkVerb) -> Callable[[PageContext], Question]:
    def ask(context: PageContext) -> Question:
        chosen = selection_of(context.query)
        counted_jobs = count(context.store, verb, chosen)
        at_least = "" if counted_jobs.is_all else "more than "
        what = f"{at_least}{counted(counted_jobs.count, 'job')}"
        sentences = [_dry_run(what, counted_jobs.count == 1, narrowed(verb, chosen).states or AMONG[verb])]
        sentences += [EFFECTS[verb]] if counted_jobs.count else []
        sentences += [f"Filter: {_which(context)}."]
        return Question(
            f"{verb.value.capitalize()} {what}",
            sentences,
            f"{verb.value.capitalize()} all",
            [InputField("rate", "At most", "text", "", hint="5/s, 100/min or 1000/h; leave empty for no limit")],
            examples=counted_jobs.examples,
            is_possible=counted_jobs.count > 0,
        )

    return ask


def _dry_run(what: str, is_one: bool, among: Collection[JobState]) -> str:
    states = " or ".join(sorted(one.value.upper() for one in among))
    return f"Dry run: {what} {'matches and is' if is_one else 'match and are'} {states}."


def _which(context: PageContext) -> str:
    fields = filter_fields(context.query).items()
    return ", ".join(f"{name} {' or '.join(values)}" for name, values in fields) or "none, so all jobs"


def _run_all(verb: BulkVerb) -> Callable[[PageContext, Given], Done]:
    def run(context: PageContext, given: Given) -> Done:
        rate = as_rate(given.text("rate"))
        action = context.bulk_actions.start(
            verb, selection_of(context.query), _which(context), given.by, given.reason, rate
        )
        return Done("Started.", f"/sweeps/{action.id}")

    return run


def as_rate(text: str) -> float | None:
    """Read a rate as jobs per second. None if it is empty: as fast as possible."""
    return jobs_per_second(text) if text else None


def _ask_stop(context: PageContext) -> Question:
    action = context.bulk_actions.find(context.asked("sweep") or "")
    is_under_way = action is not None and not action.is_over
    done = "" if action is None else f" {counted(action.done, 'job')} {DONE[action.verb]} so far stay as they are."
    return Question("Stop", [f"No further jobs are touched.{done}"], "Stop", is_possible=is_under_way)


def _stop(context: PageContext, given: Given) -> Done:
    action = context.bulk_actions.find(context.asked("sweep") or "")
    if action is None or action.is_over:
        raise Refused("it has already finished")
    action.stopped_by, action.is_stopped = given.by, True
    return Done("Stopping.", f"/sweeps/{action.id}")


ACTIONS = (
    *(OperatorAction(f"{one.verb}-jobs", one.ask, one.act, one.verb is not BulkVerb.REDRIVE) for one in NAMED),
    *(OperatorAction(f"{verb}-all", _ask_all(verb), _run_all(verb), verb is not BulkVerb.REDRIVE) for verb in BulkVerb),
    OperatorAction("stop-sweep", _ask_stop, _stop, asks_why=False),
)
