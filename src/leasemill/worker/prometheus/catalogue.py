"""Every metric that a worker exports. Names follow Prometheus: a prefix, base units, `_total` for what only rises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

MetricType: TypeAlias = Literal["counter", "gauge", "histogram"]

WAIT_S: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
RUN_S: Final = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
CALL_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
STALE_S: Final = (0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """The upper bounds, in order. One more bucket without a bound is implied."""
    is_summed: bool = True
    """The values of several processes are added up; if not, the largest counts, as with an age."""


JOBS: Final = Metric(
    "leasemill_jobs_total",
    "counter",
    "Runs that the store settled, by how: succeeded, retried, failed, dead, released, refused.",
    ("kind", "queue", "end"),
)
WAIT: Final = Metric(
    "leasemill_job_wait_seconds",
    "histogram",
    "Time from when a job was due to the start of its handler; first attempts only.",
    ("kind", "queue"),
    WAIT_S,
)
RUN: Final = Metric(
    "leasemill_job_run_seconds", "histogram", "Time that handlers ran, however they ended.", ("kind", "queue"), RUN_S
)
LEASES_HELD: Final = Metric(
    "leasemill_leases_held", "gauge", "Leases of jobs that run, or wait for a slot, in this worker."
)
LEASES_EXPIRED: Final = Metric(
    "leasemill_leases_expired_total",
    "counter",
    "Expired leases of any worker that this one recorded, by the state of the job since then.",
    ("state",),
)
REAPER_STALE: Final = Metric(
    "leasemill_reaper_stale_duration_seconds",
    "histogram",
    "How long recovered jobs had been without a holder.",
    (),
    STALE_S,
)
REAPER_LAST_RUN: Final = Metric(
    "leasemill_reaper_recovered_last_run", "gauge", "Jobs recovered by the latest run of the reaper, and during it."
)
CLAIMS: Final = Metric("leasemill_claims_total", "counter", "Claims that were answered: granted or empty.", ("result",))
TICKS: Final = Metric(
    "leasemill_schedule_ticks_total", "counter", "Ticks of schedules decided on: fired or skipped.", ("result",)
)
SLOTS: Final = Metric(
    "leasemill_slots",
    "gauge",
    "Slots of this worker: free, running, or stuck with a handler that has not returned.",
    ("state",),
)
STORE_CALL: Final = Metric(
    "leasemill_store_call_seconds",
    "histogram",
    "Time of the worker's calls that the store answered.",
    ("verb",),
    CALL_S,
)
STORE_FAILURES: Final = Metric(
    "leasemill_store_failures_total", "counter", "Calls that failed because the store was unavailable.", ("verb",)
)
QUEUE_JOBS: Final = Metric(
    "leasemill_queue_jobs", "gauge", "Jobs in the store, counted by one elected worker.", ("queue", "state")
)
QUEUE_OLDEST: Final = Metric(
    "leasemill_queue_oldest_due_seconds",
    "gauge",
    "How long the oldest claimable job has been due, by one elected worker.",
    ("queue",),
    is_summed=False,
)
QUEUE_PAUSED: Final = Metric(
    "leasemill_queue_paused", "gauge", "1: the queue is paused. By one elected worker.", ("queue",), is_summed=False
)
SCHEDULE_LATE: Final = Metric(
    "leasemill_schedule_late_seconds",
    "gauge",
    "How long the most overdue schedule has been due, or a wrong clock has moved one ahead. By one elected worker.",
    is_summed=False,
)
GROUPS_OPEN: Final = Metric(
    "leasemill_groups_open",
    "gauge",
    "Groups that are not over, at most 10,000, by one elected worker.",
    is_summed=False,
)
QUEUES_ELECTED: Final = Metric(
    "leasemill_queues_elected", "gauge", "1: this worker is the one that exports the queues, else 0."
)
INFO: Final = Metric("leasemill_info", "gauge", "Always 1; the version of Leasemill is a label.", ("version",))
WORKER_INFO: Final = Metric(
    "leasemill_worker_info",
    "gauge",
    "Always 1; the id of a worker that runs in this process is a label, as in its log lines and its record.",
    ("worker",),
    is_summed=False,
)
PROCESSES: Final = Metric("leasemill_processes", "gauge", "Processes of this worker that are running.")
PROCESS_DEATHS: Final = Metric(
    "leasemill_process_deaths_total", "counter", "Processes of this worker that ended without being asked to."
)

COUNTED: Final = {
    "extended": Metric("leasemill_leases_extended_total", "counter", "Leases that heartbeats extended."),
    "not_extended": Metric(
        "leasemill_leases_not_extended_total", "counter", "Leases in answered heartbeats that were not extended."
    ),
    "lost": Metric("leasemill_leases_lost_total", "counter", "Leases lost while this worker had their job."),
    "refused": Metric(
        "leasemill_reports_refused_total", "counter", "Reports that the store refused: the lease was not held."
    ),
    "timed_out": Metric("leasemill_jobs_timed_out_total", "counter", "Handlers that ran longer than their timeout."),
    "died": Metric("leasemill_jobs_died_total", "counter", "Runs whose process of their own died."),
    "mismatched": Metric(
        "leasemill_jobs_mismatched_total", "counter", "Claims of jobs that this worker's code cannot run."
    ),
    "stuck_runs": Metric(
        "leasemill_jobs_stuck_total", "counter", "Handlers that did not return long after their job was over."
    ),
    "taken_over": Metric(
        "leasemill_jobs_taken_over_total", "counter", "Jobs that this worker ran after a lease of another had ended."
    ),
    "beats_failed": Metric(
        "leasemill_heartbeats_failed_total", "counter", "Heartbeats that failed: the store was unavailable."
    ),
    "reaper_runs": Metric("leasemill_reaper_runs_total", "counter", "Searches for expired leases."),
    "reaper_recovered": Metric(
        "leasemill_reaper_recovered_total",
        "counter",
        "Jobs recovered from expired leases: by the reaper, a claim or a refused report.",
    ),
    "dead_workers": Metric(
        "leasemill_dead_workers_total",
        "counter",
        "Workers that this one found dead, or whose record was not renewed: stopped or cut off.",
    ),
    "deaths": Metric(
        "leasemill_leases_ended_by_death_total", "counter", "Leases ended because their holder was proved dead."
    ),
    "loop_blocked": Metric(
        "leasemill_loop_blocked_total", "counter", "Times a handler blocked the event loop for a second or longer."
    ),
    "loop_stalled_seconds": Metric(
        "leasemill_loop_stalled_seconds_total", "counter", "Time that the event loop stood still."
    ),
}
"""The counters of `worker/metrics.py`, by their names there."""

METRICS: Final = {
    metric.name: metric
    for metric in (
        *(INFO, WORKER_INFO, JOBS, WAIT, RUN, CLAIMS, LEASES_HELD, LEASES_EXPIRED, REAPER_STALE),
        *(REAPER_LAST_RUN, TICKS, SLOTS),
        *(STORE_CALL, STORE_FAILURES, QUEUE_JOBS, QUEUE_OLDEST, QUEUE_PAUSED, QUEUES_ELECTED),
        *(SCHEDULE_LATE, GROUPS_OPEN),
        *COUNTED.values(),
        *(PROCESSES, PROCESS_DEATHS),
    )
}
