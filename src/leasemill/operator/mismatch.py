"""Jobs that the workers' code could not run, as recorded. Pure.

A worker that claims a job of a kind it does not declare, or with arguments that do not fit its handler, releases it and
records why (F8). A deployment ends such a mismatch; how long to wait for one is decided by the worker.
"""

from __future__ import annotations

from typing import Final

from leasemill.kernel.model import AbortReason, Execution, Job

MISMATCH: Final = "Mismatch: "
"""How the error of such an execution begins."""


def mismatches(job: Job) -> list[Execution]:
    """The executions that ended with a mismatch since a handler last began, or an operator redrove the job."""
    found: list[Execution] = []
    for execution in reversed(job.executions):
        if execution.started_at is not None or execution.attempt <= (job.redriven_attempt or 0):
            break
        if is_mismatch(execution):
            found.append(execution)
    found.reverse()
    return found


def is_mismatch(execution: Execution) -> bool:
    return execution.reason is AbortReason.RELEASED and (execution.error or "").startswith(MISMATCH)
