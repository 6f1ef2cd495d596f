"""Cancel, redrive and purge jobs: those that are named, or everything that matches."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from leasemill.dashboard.selecting import selecting_fields, selection_of
from leasemill.dashboard.sweeps import AMONG, SweepVerb, count, narrowed
from leasemill.dashboard.viewing import Done, Given, InputField, OperatorAct, Question, Viewing
from leasemill.errors import Invalid, Refused
from leasemill.kernel import commands as c
from leasemill.kernel.model import ENDED_STATES, UNSUCCESSFUL_STATES, Job, JobState
from leasemill.operator.wording import counted, jobs_per_second, listed

MOST_NAMED: Final = 500
DONE: Final = {SweepVerb.CANCEL: "cancelled", SweepVerb.REDRIVE: "redriven", SweepVerb.PURGE: "purged"}
EFFECTS: Final = {
    SweepVerb.CANCEL: "They end CANCELLED; one that is running is stopped, and its lane goes on.",
    SweepVerb.REDRIVE: "They are READY again and due now, with all their retries. Attempts and history stay.",
    SweepVerb.PURGE: "They are deleted with their history. This cannot be undone.",
}
EFFECTS_ON_ONE: Final = {
    SweepVerb.CANCEL: "It ends CANCELLED. If it is running, it is stopped; if it is in a lane, the lane goes on.",
    SweepVerb.REDRIVE: "It is READY again and due now, with all its retries. Attempts and history stay.",
    SweepVerb.PURGE: "It is deleted with its history. This cannot be undone.",
}


@dataclass(frozen=True, slots=True)
class NamedJobs:
    """What is done to jobs that are named by their ids."""

    verb: SweepVerb
    among: frozenset[JobState]
    run: Callable[[Viewing, tuple[str, ...], Given], int]

    def ask(self, viewing: Viewing) -> Question:
        ids = _ids(viewing)
        found = viewing.store.jobs(c.JobFilter(job_ids=ids), limit=len(ids)).jobs
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

    def act(self, viewing: Viewing, given: Given) -> Done:
        ids = _ids(viewing)
        changed = self.run(viewing, ids, given)
        left = "" if changed == len(ids) else f" {counted(len(ids) - changed, 'job')} left alone."
        return Done(f"{counted(changed, 'job')} {DONE[self.verb]}.{left}")


def _ids(viewing: Viewing) -> tuple[str, ...]:
    ids = tuple(dict.fromkeys(one for one in viewing.query.getlist("job") if one))
    if not 0 < len(ids) <= MOST_NAMED:
        raise Invalid(f"choose 1 to {MOST_NAMED} jobs, or act on everything that matches a filter")
    return ids


def _why_not(verb: SweepVerb, found: tuple[Job, ...], among: frozenset[JobState]) -> str:
    states = sorted({job.state.value.upper() for job in found if job.state not in among})
    hint = "; cancel them first" if verb is SweepVerb.PURGE else ""
    return f": {listed(states)}{hint}" if states else ": they are not there any more"


def _cancel(viewing: Viewing, ids: tuple[str, ...], given: Given) -> int:
    outcomes = viewing.store.cancel(ids, by=given.by, reason=given.reason)
    return sum(
        isinstance(one, c.Cancelled) and one.state is JobState.CANCELLED and not one.is_repeat for one in outcomes
    )


def _redrive(viewing: Viewing, ids: tuple[str, ...], given: Given) -> int:
    where = c.JobFilter(job_ids=ids)
    done = viewing.store.redrive(where, by=given.by, reason=given.reason, limit=len(ids), include_cancelled=True)
    if done.held_back and not done.job_ids:
        holder = done.held_back[0]
        raise Refused(f"job {holder.holder_id} holds the unique key of {holder.job_id}: it cannot be redriven")
    return len(done.job_ids)


def _purge(viewing: Viewing, ids: tuple[str, ...], given: Given) -> int:
    where = c.JobFilter(job_ids=ids)
    return len(viewing.store.purge(where, by=given.by, reason=given.reason, limit=len(ids)).job_ids)


NAMED: Final = (
    NamedJobs(SweepVerb.CANCEL, frozenset(JobState) - {JobState.SUCCEEDED, JobState.CANCELLED}, _cancel),
    NamedJobs(SweepVerb.REDRIVE, UNSUCCESSFUL_STATES, _redrive),
    NamedJobs(SweepVerb.PURGE, ENDED_STATES, _purge),
)


# Everything that matches -----------------------------------------------------------------------------------------


def _ask_all(verb: SweepVerb) -> Callable[[Viewing], Question]:
    def ask(viewing: Viewing) -> Question:
        chosen = selection_of(viewing.query)
        counted_jobs = count(viewing.store, verb, chosen)
        at_least = "" if counted_jobs.is_all else "more than "
        what = f"{at_least}{counted(counted_jobs.count, 'job')}"
        sentences = [_dry_run(what, counted_jobs.count == 1, narrowed(verb, chosen).states or AMONG[verb])]
        sentences += [EFFECTS[verb]] if counted_jobs.count else []
        sentences += [f"Filter: {_which(viewing)}."]
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


def _which(viewing: Viewing) -> str:
    fields = selecting_fields(viewing.query).items()
    return ", ".join(f"{name} {' or '.join(values)}" for name, values in fields) or "none, so all jobs"


def _run_all(verb: SweepVerb) -> Callable[[Viewing, Given], Done]:
    def run(viewing: Viewing, given: Given) -> Done:
        rate = as_rate(given.text("rate"))
        sweep = viewing.sweeps.start(verb, selection_of(viewing.query), _which(viewing), given.by, given.reason, rate)
        return Done("Started.", f"/sweeps/{sweep.id}")

    return run


def as_rate(text: str) -> float | None:
    """Jobs per second; None: empty, as fast as it goes."""
    return jobs_per_second(text) if text else None


def _ask_stop(viewing: Viewing) -> Question:
    sweep = viewing.sweeps.find(viewing.asked("sweep") or "")
    is_under_way = sweep is not None and not sweep.is_over
    done = "" if sweep is None else f" {counted(sweep.done, 'job')} {DONE[sweep.verb]} so far stay as they are."
    return Question("Stop", [f"No further jobs are touched.{done}"], "Stop", is_possible=is_under_way)


def _stop(viewing: Viewing, given: Given) -> Done:
    sweep = viewing.sweeps.find(viewing.asked("sweep") or "")
    if sweep is None or sweep.is_over:
        raise Refused("it has already finished")
    sweep.stopped_by, sweep.is_stopped = given.by, True
    return Done("Stopping.", f"/sweeps/{sweep.id}")


ACTS = (
    *(OperatorAct(f"{one.verb}-jobs", one.ask, one.act, one.verb is not SweepVerb.REDRIVE) for one in NAMED),
    *(OperatorAct(f"{verb}-all", _ask_all(verb), _run_all(verb), verb is not SweepVerb.REDRIVE) for verb in SweepVerb),
    OperatorAct("stop-sweep", _ask_stop, _stop, asks_why=False),
)
