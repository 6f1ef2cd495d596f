"""Faults put into the kernel, which the conformance suite must notice; run by `tests.lab.mutations`."""

from __future__ import annotations

import sys
from typing import Final

from tests.lab.mutations import SOURCE, Mutation, Table, main

KERNEL: Final = SOURCE / "leasemill" / "kernel"

MUTATIONS: Final = (
    Mutation(
        "the token is not checked",
        "L2 I2",
        "fence.py",
        "        if execution.token == token:\n            return execution",
        "        return execution",
    ),
    Mutation(
        "the time is not checked",
        "L1 L3",
        "fence.py",
        "return execution is not None and execution.status in LIVE and now < execution.expires_at",
        "return execution is not None and execution.status in LIVE",
        also=(("fence.py", "(execution.status in LIVE and now < execution.expires_at)", "execution.status in LIVE"),),
    ),
    Mutation(
        "a refused lease may be revived",
        "L3",
        "fence.py",
        "    if execution is not None and execution.status in LIVE:\n        events.append(expire_one",
        "    if False:\n        events.append(expire_one",
    ),
    Mutation(
        "expiry after commit gives the job back",
        "X5 X4",
        "ending.py",
        "COMMITTED:\n        return done_after_commit(execution, Verb.EXPIRE",
        "DONE:\n        return done_after_commit(execution, Verb.EXPIRE",
    ),
    Mutation(
        "nack after commit gives the job back",
        "X5 X4",
        "verbs/nack.py",
        "COMMITTED:\n        return (done_after_commit(execution, Verb.NACK",
        "DONE:\n        return (done_after_commit(execution, Verb.NACK",
    ),
    Mutation(
        "release after commit gives the job back",
        "X5 X4",
        "verbs/release.py",
        "    if execution.status is ExecutionStatus.COMMITTED:\n        done = done_after_commit",
        "    if False:\n        done = done_after_commit",
    ),
    Mutation(
        "cancel after commit kills the job",
        "X5",
        "verbs/cancel.py",
        "if execution is not None and execution.status is ExecutionStatus.COMMITTED:",
        "if execution is not None and execution.status is ExecutionStatus.LEASED and False:",
    ),
    Mutation(
        "a repeated commit commits again",
        "X4 L6",
        "verbs/commit.py",
        "if execution is not None and execution.committed_by is Verb.COMMIT:",
        "if execution is not None and False:",
    ),
    Mutation(
        "a repeated ack is refused",
        "L6",
        "verbs/ack.py",
        "if job is not None and execution is not None and execution.status is ExecutionStatus.DONE:",
        "if job is not None and execution is not None and False:",
    ),
    Mutation(
        "a repeated nack is refused",
        "L6",
        "verbs/nack.py",
        "        if repeated is not None:\n            return (), repeated",
        "        if repeated is not None and False:\n            return (), repeated",
    ),
    Mutation(
        "a repeated release is refused",
        "L6",
        "verbs/release.py",
        "        if execution.ended_by is Verb.RELEASE:",
        "        if False:",
    ),
    Mutation(
        "a repeated claim claims again",
        "C5",
        "verbs/claim.py",
        "    if repeated:\n        return (), repeated",
        "    if False:\n        return (), repeated",
    ),
    Mutation(
        "a kept failure counts again when it is repeated",
        "N11",
        "verbs/nack.py",
        "if report.keep_lease and kept is not None and kept.report_id == report.report_id:",
        "if False and report.keep_lease and kept is not None and kept.report_id == report.report_id:",
    ),
    Mutation(
        "a token is granted twice",
        "I2",
        "verbs/claim.py",
        "        if execution_of(job, token) is not None:\n",
        "        if False:\n",
    ),
    Mutation(
        "a refusal is not kept",
        "L5",
        "fence.py",
        "        events.append(ReportRefused(job_id, token, verb, worker, attempt, job.attempt, reason, now))",
        "        pass",
    ),
    Mutation(
        "a refusal is kept every time",
        "L5",
        "fence.py",
        "refusal.token == token and refusal.verb is verb for refusal in job.refusals",
        "False for refusal in job.refusals",
    ),
    Mutation(
        "jobs behind a lane's head can be claimed",
        "N1 N2 N3",
        "lanes.py",
        "    lane.waiting_count += 1\n    return False",
        "    lane.waiting_count += 1\n    return True",
    ),
    Mutation(
        "the next in the lane is not made head",
        "N4",
        "lanes.py",
        "    lane.head = None\n    head = next_in_lane(state, lane)",
        "    lane.head = head = None",
    ),
    Mutation(
        "a failed head never blocks its lane",
        "N5",
        "ending.py",
        "    return job.spec.lane is not None and terms.on_failure is OnFailure.BLOCK",
        "    return job.spec.lane is not None and terms.on_failure is OnFailure.BLOCK and False",
    ),
    Mutation(
        "retries have no bound", "F2", "retry.py", "    return job.retries >= terms.max_retries", "    return False"
    ),
    Mutation(
        "one retry too many",
        "F2",
        "retry.py",
        "    return job.retries >= terms.max_retries",
        "    return job.retries > terms.max_retries",
    ),
    Mutation(
        "expiry uses a retry",
        "F3",
        "verbs/expire.py",
        "    execution.reason = AbortReason.EXPIRED\n",
        "    execution.reason = AbortReason.EXPIRED\n    job.retries += 1\n",
    ),
    Mutation(
        "nobody is quarantined",
        "F4",
        "retry.py",
        "    return job.expirations + 1 >= terms.max_expirations",
        "    return False",
    ),
    Mutation(
        "expirations before a start are counted",
        "F4",
        "verbs/expire.py",
        "    if execution.status is ExecutionStatus.STARTED:\n        job.expirations += 1",
        "    job.expirations += 1",
    ),
    Mutation(
        "the back-off has no cap",
        "F1",
        "retry.py",
        "LONGEST_EXPONENT), terms.backoff_cap_us)",
        "LONGEST_EXPONENT), 2**60)",
    ),
    Mutation(
        "pause is ignored",
        "C6 O3",
        "verbs/claim.py",
        "        if queue is None or queue.is_paused:\n",
        "        if queue is None:\n",
    ),
    Mutation(
        "jobs are given before they are due",
        "C1 E3",
        "verbs/claim.py",
        "            found = order.first(left, now)",
        "            found = order.first(left, 2**63)",
    ),
    Mutation(
        "the lowest priority goes first", "C2", "verbs/claim.py", "range(PRIORITIES - 1, -1, -1)", "range(PRIORITIES)"
    ),
    Mutation(
        "claim records no expiries",
        "L7",
        "verbs/claim.py",
        "if leases or not do(expire.decide(state, Expire(command.limit), now)):",
        "if True:",
    ),
    Mutation(
        "the fence stands still", "I3", "verbs/claim.py", "        fence += 1\n", "        fence = max(fence, 1)\n"
    ),
    Mutation(
        "other content counts as the same job",
        "E4",
        "verbs/enqueue.py",
        "(Duplicate(job.id) if is_same_content(known.spec, job) else Conflict(job.id))",
        "Duplicate(job.id)",
    ),
    Mutation("a key that is held is taken", "U1", "verbs/enqueue.py", "    if holder is None:", "    if True:"),
    Mutation(
        "a retry lets its key go",
        "U2",
        "unique.py",
        "return job.state is READY or job.state is LEASED",
        "return job.state is LEASED or is_untouched(job)",
    ),
    Mutation(
        "a key is held until the start again",
        "U2",
        "unique.py",
        "job.state is READY and job.attempt == 0 and job.redriven_attempt is None",
        "job.state is READY",
    ),
    Mutation("a kept key goes with its job", "U3", "unique.py", "    if taken.until > at:", "    if False:"),
    Mutation(
        "a redrive takes a key from another",
        "U4",
        "verbs/redrive.py",
        "    if holder_id is not None and holder_id != job.spec.id:",
        "    if False:",
    ),
    Mutation(
        "a follow-up does not see the keys of those before it",
        "U5",
        "verbs/commit.py",
        "    if unique is not None:\n        ahead",
        "    if False:\n        ahead",
    ),
    Mutation(
        "a debounced job is put off for ever",
        "U8",
        "unique.py",
        "min(now + job.delay_us, waiting.created_at + known.at_most_us)",
        "now + job.delay_us",
    ),
    Mutation(
        "a job that ran is replaced",
        "U9",
        "unique.py",
        "or not is_untouched(waiting) or",
        "or",
    ),
    Mutation(
        "a conflicting follow-up is passed over",
        "X6",
        "verbs/commit.py",
        "        if isinstance(outcome, Conflict):",
        "        if False:",
    ),
    Mutation(
        "extend may shorten a lease",
        "L9",
        "verbs/extend.py",
        "    if until <= execution.expires_at:",
        "    if until == execution.expires_at:",
    ),
    Mutation(
        "the kind's policy goes before the job's",
        "I5",
        "retry.py",
        "for policy in reversed(layers)",
        "for policy in layers",
    ),
    Mutation(
        "a redriven job keeps its counts",
        "O2",
        "verbs/redrive.py",
        "    job.retries = 0\n    job.expirations = 0\n",
        "",
    ),
    Mutation(
        "live jobs can be purged",
        "O5",
        "model.py",
        "ENDED_STATES: Final = UNSUCCESSFUL_STATES | {JobState.SUCCEEDED}",
        "ENDED_STATES: Final = UNSUCCESSFUL_STATES | {JobState.READY, JobState.SUCCEEDED}",
    ),
    Mutation(
        "an operator's act is not kept",
        "O8",
        "verbs/cancel.py",
        "    record(state, Verb.CANCEL, event.job_id, event)\n",
        "",
    ),
    Mutation(
        "offsets are acquired out of order",
        "N8",
        "verbs/acquire.py",
        "        if head.spec.offset != request.offset:\n            return (), OutOfOrder",
        "        if False:\n            return (), OutOfOrder",
    ),
    Mutation("finished offsets are forgotten", "N10", "lanes.py", "    lane.finished.add(spec.offset)\n", ""),
    Mutation(
        "acquired leases end like others",
        "N9",
        "retry.py",
        "        lease_ttl_us=NEVER,\n        timeout_us=NEVER,",
        "        lease_ttl_us=30_000_000,",
    ),
)

TABLE: Final = Table(
    "the kernel",
    MUTATIONS,
    {str(path.relative_to(KERNEL)): path for path in KERNEL.rglob("*.py")},
    "tests/store/test_conformance.py",
    tuple(f"tests/kernel/test_{name}.py" for name in ("table", "retry", "events", "order", "histories")),
)

if __name__ == "__main__":
    sys.exit(main(TABLE, {"HYPOTHESIS_PROFILE": "unshrunk"}, sys.argv[1:]))
