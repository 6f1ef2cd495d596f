"""What may come in. Checked once, at a store's door, before anything is decided; the sentence says what to write.

A batch with one wrong item is refused whole: nothing of it happens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.kernel.model import NEVER, SECOND, JobSpec, OnFailure, Policy

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}", re.ASCII)
TEXT_LENGTH: Final = 200
STRING_LENGTH: Final = 100_000
REASON_LENGTH: Final = 1_000
PAYLOAD_BYTES: Final = 1024 * 1024
BATCH_ITEMS: Final = 10_000
BATCH_BYTES: Final = 64 * 1024 * 1024
FOLLOWUPS: Final = 1_000
LATEST: Final = 253_402_300_799 * SECOND
LONGEST_US: Final = 3_660 * 24 * 3_600 * SECOND
LARGEST_OFFSET: Final = 2**63 - 2


def check(command: c.Command[Any]) -> None:
    """Refuse a command that is not well formed."""
    checker = _CHECKERS.get(type(command))
    if checker is not None:
        checker(command)


def check_name(what: str, name: str) -> None:
    if NAME.fullmatch(name) is None:
        raise Invalid(
            f"{what} {_shown(name)} is not a name: use 1 to 100 of A-Z a-z 0-9 _ . : - "
            "and begin with a letter, a digit or _"
        )


def check_text(what: str, text: str, longest: int = TEXT_LENGTH) -> None:
    if not 0 < len(text) <= longest or not text.isprintable():
        raise Invalid(f"{what} {_shown(text)} must be 1 to {longest} printable characters")


def check_string(what: str, value: str) -> None:
    """Text of any kind, as long as it can be written down and read again."""
    if not isinstance(value, str):
        raise Invalid(f"{what} is {_shown(value)}; it must be text")
    if len(value) > STRING_LENGTH or "\0" in value:
        raise Invalid(f"{what} must have at most {STRING_LENGTH:,} characters and no zero among them: shorten it")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Invalid(f"{what} {_shown(value)} is not text that UTF-8 can write") from None


def check_json(what: str, content: bytes) -> None:
    if not isinstance(content, bytes):
        raise Invalid(f"{what} is a {type(content).__name__}; it must be JSON in bytes")
    if len(content) > PAYLOAD_BYTES:
        raise Invalid(
            f"{what} has {len(content):,} bytes, at most {PAYLOAD_BYTES:,} are taken: "
            "store it elsewhere and pass a reference"
        )
    try:
        _json_decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"{what} is not JSON: {error}") from None
    except RecursionError:
        raise Invalid(f"{what} is nested too deeply to be read: make it flatter") from None


def check_policy(policy: Policy | None) -> None:
    """F6: every bound of a policy, and the bounds between them."""
    if policy is None:
        return
    _check_range("max_retries", policy.max_retries, 0, 1_000)
    _check_range("max_expirations", policy.max_expirations, 1, 1_000)
    _check_range("lease_ttl_us", policy.lease_ttl_us, 1_000, LONGEST_US)
    _check_range("timeout_us", policy.timeout_us, 1, LONGEST_US)
    _check_range("backoff_base_us", policy.backoff_base_us, 0, LONGEST_US)
    _check_range("backoff_cap_us", policy.backoff_cap_us, 0, LONGEST_US)
    if policy.on_failure is not None and not isinstance(policy.on_failure, OnFailure):
        raise Invalid(f"on_failure is {_shown(policy.on_failure)}; it must be one of {', '.join(OnFailure)}")
    base, cap = policy.backoff_base_us, policy.backoff_cap_us
    if base is not None and cap is not None and base > cap:
        raise Invalid(f"backoff_base_us {base} is more than backoff_cap_us {cap}: make the cap at least the base")


def check_job(job: JobSpec) -> None:
    check_text("job id", job.id)
    check_name("queue", job.queue)
    check_name("kind", job.kind)
    check_json("payload", job.payload)
    if job.lane is not None:
        check_text("lane", job.lane)
    if job.priority or type(job.priority) is not int:
        _check_number("priority", job.priority, 0, 9)
    if job.run_at is not None:
        _check_range("run_at", job.run_at, 0, LATEST)
        if job.delay_us:
            raise Invalid("run_at and delay exclude each other: give one of them")
    if job.delay_us or type(job.delay_us) is not int:
        _check_number("delay_us", job.delay_us, 0, LONGEST_US)
    check_policy(job.policy)


def _check_range(what: str, value: int | None, least: int, most: int) -> None:
    if value is not None:
        _check_number(what, value, least, most)


def _check_number(what: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise Invalid(f"{what} is {value!r}; it must be a whole number from {least} to {most}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _check_batch(items: Sequence[object]) -> None:
    if len(items) > BATCH_ITEMS:
        raise Invalid(f"{len(items):,} items in one call; at most {BATCH_ITEMS:,} are taken: send several calls")


def _check_limit(limit: int) -> None:
    _check_range("limit", limit, 1, BATCH_ITEMS)


def _check_operator(by: str, reason: str) -> None:
    check_text("the operator's name", by)
    check_text("the reason", reason, REASON_LENGTH)


def _check_enqueue(command: c.Enqueue) -> None:
    _check_batch(command.jobs)
    if sum(len(job.payload) for job in command.jobs) > BATCH_BYTES:
        raise Invalid(f"the payloads of one call have more than {BATCH_BYTES:,} bytes: send several calls")
    for job in command.jobs:
        check_job(job)
        if job.offset is not None:
            raise Invalid(f"job {job.id!r} has an offset; jobs with offsets come by acquire")


def _check_claim(command: c.Claim) -> None:
    check_text("worker", command.worker)
    if not command.queues:
        raise Invalid("claim names no queue: name at least one")
    _check_batch(command.queues)
    for queue in command.queues:
        check_name("queue", queue)
    _check_limit(command.limit)
    if len(command.tokens) < command.limit or len(set(command.tokens)) != len(command.tokens):
        raise Invalid(f"claim of {command.limit} needs as many different tokens; it has {len(set(command.tokens))}")
    for token in command.tokens:
        check_string("token", token)
    if command.request_id is not None:
        check_text("request id", command.request_id)
    _check_kinds(command.kinds)


def _check_kinds(kinds: Mapping[str, Policy]) -> None:
    for kind, policy in kinds.items():
        check_name("kind", kind)
        check_policy(policy)


def _check_start(command: c.Start) -> None:
    _check_batch(command.reports)
    for report in command.reports:
        _check_lease(report)
        _check_range("age_us", report.age_us, 0, LONGEST_US)


def _check_extend(command: c.Extend) -> None:
    _check_batch(command.leases)
    for lease in command.leases:
        _check_lease(lease)


def _check_lease(report: c.StartReport | c.LeaseRef | c.Commit | c.AckReport | c.NackReport | c.ReleaseReport) -> None:
    check_string("job id", report.job_id)
    check_string("token", report.token)


def _check_commit(command: c.Commit) -> None:
    _check_lease(command)
    if command.result is not None:
        check_json("result", command.result)
    if len(command.followups) > FOLLOWUPS:
        raise Invalid(f"{len(command.followups):,} follow-up jobs; a commit takes at most {FOLLOWUPS:,}")
    if sum(len(followup.payload) for followup in command.followups) > BATCH_BYTES:
        raise Invalid(f"the follow-ups' payloads have more than {BATCH_BYTES:,} bytes: enqueue fewer, or smaller ones")
    for index, followup in enumerate(command.followups):
        check_job(
            JobSpec(
                f"follow-up {index}",
                followup.queue,
                followup.kind,
                followup.payload,
                followup.lane,
                followup.priority,
                followup.run_at,
                followup.delay_us,
                followup.policy,
            )
        )


def _check_ack(command: c.Ack) -> None:
    _check_batch(command.reports)
    for report in command.reports:
        _check_lease(report)
        if report.result is not None:
            check_json("result", report.result)


def _check_nack(command: c.Nack) -> None:
    _check_batch(command.reports)
    for report in command.reports:
        _check_lease(report)
        check_string("error", report.error)
        check_string("report id", report.report_id)
        if not 0 <= report.jitter < 1:
            raise Invalid(f"jitter is {report.jitter}; it must be at least 0 and less than 1")
        if report.delay_us is not None:
            _check_range("delay_us", report.delay_us, 0, LONGEST_US)
        if report.keep_lease and not report.report_id:
            raise Invalid("nack with keep_lease needs a report_id, to distinguish a repeat from a second failure")


def _check_release(command: c.Release) -> None:
    _check_batch(command.reports)
    for report in command.reports:
        _check_lease(report)
        _check_range("delay_us", report.delay_us, 0, LONGEST_US)
        if report.error is not None:
            check_string("error", report.error)


def _check_acquire(command: c.Acquire) -> None:
    _check_batch(command.requests)
    for request in command.requests:
        check_name("queue", request.queue)
        check_text("lane", request.lane)
        check_text("worker", request.worker)
        check_string("token", request.token)
        check_name("kind", request.kind)
        check_json("payload", request.payload)
        check_policy(request.policy)
        _check_range("offset", request.offset, 0, LARGEST_OFFSET)


def _check_cancel(command: c.Cancel) -> None:
    _check_batch(command.job_ids)
    _check_operator(command.by, command.reason)


def _check_sweep(command: c.Redrive | c.Purge) -> None:
    _check_limit(command.limit)
    _check_operator(command.by, command.reason)
    if isinstance(command, c.Redrive) and command.include_cancelled and command.filter.job_ids is None:
        raise Invalid("cancelled jobs are redriven by id only: name them")  # O2


def _check_queue_command(command: c.Pause | c.Resume | c.SetPolicy) -> None:
    check_name("queue", command.queue)
    _check_operator(command.by, command.reason)
    if isinstance(command, c.SetPolicy):
        check_policy(command.policy)


def _check_prune(command: c.Prune) -> None:
    _check_limit(command.limit)
    _check_range("keep", command.keep, 0, NEVER)


_json_decode = msgspec.json.Decoder().decode

_CHECKERS: Final[dict[type, Callable[[Any], None]]] = {
    c.Enqueue: _check_enqueue,
    c.Claim: _check_claim,
    c.Start: _check_start,
    c.Extend: _check_extend,
    c.Commit: _check_commit,
    c.Ack: _check_ack,
    c.Nack: _check_nack,
    c.Release: _check_release,
    c.Expire: lambda command: _check_limit(command.limit),
    c.Acquire: _check_acquire,
    c.Cancel: _check_cancel,
    c.Redrive: _check_sweep,
    c.Purge: _check_sweep,
    c.Pause: _check_queue_command,
    c.Resume: _check_queue_command,
    c.SetPolicy: _check_queue_command,
    c.Prune: _check_prune,
    c.ListJobs: lambda command: _check_limit(command.limit),
    c.ListQueues: lambda command: _check_limit(command.limit),
    c.ListLanes: lambda command: _check_limit(command.limit),
    c.ListActions: lambda command: _check_limit(command.limit),
}
