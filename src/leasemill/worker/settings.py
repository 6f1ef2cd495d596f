"""The settings of a worker: its options, checked when it is made, and named in the log when it starts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from leasemill import __version__
from leasemill.api.app import App
from leasemill.api.policy import Duration, is_whole, microseconds
from leasemill.errors import Invalid
from leasemill.kernel.bounds import check_name
from leasemill.kernel.model import SECOND, Policy
from leasemill.worker.metrics import Metrics
from leasemill.worker.observers import Observers
from leasemill.worker.start_log import StartFacts
from leasemill.worker.timing import Times

DefaultT = TypeVar("DefaultT")

log = logging.getLogger("leasemill.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The checked options of one worker, with the counters and the observers that its parts share."""

    worker_id: str
    instance: str
    """The beginning of every token of this run, by which its leases are found if it dies."""
    app: App
    queues: Mapping[str, int]
    """The weights of the queues it serves, by name."""
    kinds: Mapping[str, Policy]
    """The policies of the kinds of jobs that its code declares."""
    times: Times
    concurrency: int
    drains: bool
    drain_wait_us: int
    """A drain also waits for jobs that are due within this time."""
    mismatch_s: float
    """How long a job that no code matches is released before it fails."""
    metrics: Metrics
    observers: Observers


def weights(app: App, queues: Mapping[str, int] | Iterable[str] | None) -> dict[str, int]:
    """The queues to serve and their weights; default: all queues of the app's jobs, alike."""
    if isinstance(queues, str):
        raise Invalid(f"queues is a string, {queues!r}; write [{queues!r}] or {{{queues!r}: 1}}")
    asked = sorted(app.queues) if queues is None else queues
    weights = dict(asked) if isinstance(asked, Mapping) else dict.fromkeys(asked, 1)
    if not weights:
        if queues is not None:
            raise Invalid(
                "no queue to serve: name at least one, or leave `queues` out to serve those of the app's jobs"
            )
        raise Invalid(f"no queue to serve: the app declares no jobs; {no_job_advice(app)}")
    for name, weight in weights.items():
        check_name("queue", name)
        at_least(f"the weight of queue {name!r}", weight, 1)
    return weights


def no_job_advice(app: App) -> str:
    """What to do about an app that declares nothing."""
    if app.include:
        return f"its modules ({', '.join(app.include)}) declare none with @app.job of this app"
    return (
        "declare one with @app.job. If jobs are declared in other modules, name those where the app is made: "
        "App(include=['shop.jobs']); in Django, put them into jobs.py of an app in INSTALLED_APPS"
    )


def at_least(what: str, value: int, least: int) -> int:
    if not is_whole(value) or value < least:
        raise Invalid(f"{what} is {value!r}; write a whole number of at least {least}")
    return value


def seconds(what: str, duration: Duration | None, default: DefaultT) -> float | DefaultT:
    """Return a duration in seconds, or the default where none was given."""
    return default if duration is None else microseconds(what, duration) / SECOND


def drain_wait_us(wait: Duration, *, drains: bool) -> int:
    """How long before a job is due a drain waits for it."""
    if wait and not drains:
        raise Invalid(
            "drain_wait (--drain-wait) is for a worker that drains: add drain=True (--drain), or leave it out"
        )
    return microseconds("drain wait", wait)


def start_facts(app: App, queues: Mapping[str, int], concurrency: int) -> StartFacts:
    return StartFacts(__version__, app.store.name, list(queues), sorted(app.jobs), concurrency)


def warn_of_jobs(worker_id: str, app: App) -> None:
    """Name the handlers that cannot be called."""
    if not app.jobs:
        log.warning("the app declares no jobs; %s", no_job_advice(app), extra={"worker": worker_id})
    for job in app.jobs.values():
        try:
            job.arguments.check()  # an annotation may name what is defined later; by now it must be
        except Invalid as error:
            fields = {"worker": worker_id, "kind": job.kind}
            log.error("jobs of kind %r cannot run here: %s", job.kind, error, extra=fields)
