"""Leasemill without its fence, for every interpreter that has this folder on its path: tokens and time are not checked,
neither by the store nor by the run itself.

Python imports this module by its name when it starts. It is how the tests show that they would notice.
"""

from typing import Any

from leasemill.api.lease_loss import LossSignal
from leasemill.kernel.transitions import executions


def is_held(execution: object, now: int) -> bool:
    return execution is not None


def any_execution(state: Any, event: Any) -> tuple[Any, Any]:
    job = state.jobs[event.job_id]
    return job, next(it for it in job.executions if it.token == event.token)


def is_never_set(signal: LossSignal) -> bool:
    return False


LossSignal.is_set = is_never_set  # type: ignore[method-assign, assignment]
executions.live = executions.reported = executions.reported_uncommitted = any_execution

from leasemill.kernel.transitions import fence  # noqa: E402  (it and the verbs take `live` as it is when they are imported)

fence.held = fence.held_or_committed = is_held
