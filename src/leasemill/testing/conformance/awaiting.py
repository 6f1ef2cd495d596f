"""Every verb in async code answers as it does in blocking code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from leasemill.kernel.commands import (
    AckReport,
    AcquireRequest,
    Followup,
    GetJob,
    GetTotals,
    Lease,
    LeaseRef,
    NackReport,
    ReleaseReport,
    StartReport,
)
from leasemill.kernel.model import NEVER, Policy
from leasemill.store.base import FullStore
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import LEASE_US, spec
from leasemill.testing.rules import rule

Call = Callable[..., Awaitable[Any]]
VERBS = ("enqueue", "claim", "start", "extend", "commit", "ack", "nack", "release", "expire", "acquire", "job", "run")


def blocking(store: FullStore) -> dict[str, Call]:
    def awaitable(verb: str) -> Call:
        async def call(*arguments: Any, **options: Any) -> Any:
            return getattr(store, verb)(*arguments, **options)

        return call

    return {verb: awaitable(verb) for verb in VERBS}


def awaiting(store: FullStore) -> dict[str, Call]:
    return {verb: getattr(store, f"a{verb}") for verb in VERBS}


async def walk(call: dict[str, Call], harness: Harness, name: str) -> list[Any]:
    """A walk over every verb, accepted and refused, in a queue of this name; answers with all the answers."""
    answers: list[Any] = []

    async def tell(verb: str, *arguments: Any, **options: Any) -> Any:
        answer = await call[verb](*arguments, **options)
        answers.append(answer)
        return answer

    ids = [f"{name}-{number}" for number in range(5)]
    jobs = [spec(job_id, queue=name) for job_id in ids]
    await tell("enqueue", jobs[:4])
    await tell("enqueue", [jobs[3], spec(ids[3], queue=name, priority=1), jobs[4]])
    leases: list[Lease] = await tell("claim", "worker", [name], 4, request_id=f"request-{name}")
    await tell("claim", "worker", [name], 4, request_id=f"request-{name}")
    first, second, third, fourth = [(lease.job.id, lease.token) for lease in leases]
    await tell("start", [StartReport(*first, 1), StartReport(*second), StartReport("none", "none")])
    harness.clock.advance(s=1)
    await tell("extend", [LeaseRef(*first), LeaseRef("none", "none")])
    followups = [Followup(f"{name}-later", "kind")]
    await tell("commit", *first, result=b"1", followups=followups)
    await tell("commit", *first, result=b"1", followups=followups)
    await tell("ack", [AckReport(*first), AckReport(*first), AckReport(*second, b"[2]")])
    await tell("nack", [NackReport(*third, "broke", jitter=0.5), NackReport(*third, "broke", jitter=0.5)])
    await tell("release", [ReleaseReport(*fourth, 5), ReleaseReport(*second)])
    (short,) = await tell("claim", "worker", [name], 1, kinds={"kind": Policy(max_retries=0)})
    await tell("start", [StartReport(short.job.id, short.token)])
    harness.clock.advance(us=LEASE_US)
    await tell("expire", 10)
    await tell("ack", [AckReport(short.job.id, short.token)])
    requests = [AcquireRequest(f"{name}-offsets", "A", offset, "worker", f"token-{offset}") for offset in (1, 2, 1)]
    await tell("acquire", requests)
    for job_id in (*ids, "nowhere"):
        await tell("job", job_id)
    await tell("run", GetJob(ids[0]))
    assert (await call["run"](GetTotals())).counts
    return answers


def plainly(answers: list[Any], name: str, begun: int) -> Any:
    """The answers as plain values, without what must differ: names, whatever is drawn or counted, the time."""

    def plain(value: Any) -> Any:
        match value:
            case msgspec.Struct():
                fields = {field: getattr(value, field) for field in value.__struct_fields__}
                hidden = {"token", "fence", "seq", "request_id"}
                return type(value).__name__, {
                    field: None if field in hidden else plain(one) for field, one in fields.items()
                }
            case list() | tuple():
                return [plain(one) for one in value]
            case str():
                return str(value).replace(name, "NAME")
            case int() if 10**15 < value < NEVER:
                return value - begun
            case _:
                return value

    return plain(answers)


class Awaiting:
    @rule("E6", "C5", "L6")
    def test_every_verb_answers_alike_in_blocking_and_in_async_code(self, harness: Harness) -> None:
        store = harness.store
        begun = harness.clock.now()
        told = plainly(asyncio.run(walk(blocking(store), harness, "alpha")), "alpha", begun)
        begun = harness.clock.now()
        told_async = plainly(asyncio.run(walk(awaiting(store), harness, "omega")), "omega", begun)
        assert told_async == told

    @rule("C7")
    def test_calls_may_overlap_in_one_event_loop(self, harness: Harness) -> None:
        store = harness.store

        async def overlap() -> list[str]:
            await asyncio.gather(*(store.aenqueue([spec(f"job-{number}")]) for number in range(20)))
            claims = await asyncio.gather(*(store.aclaim(f"worker-{number}", ["work"], 4) for number in range(6)))
            leases = [lease for claimed in claims for lease in claimed]
            await asyncio.gather(*(store.aack([AckReport(lease.job.id, lease.token)]) for lease in leases))
            return [lease.job.id for lease in leases]

        given = asyncio.run(overlap())
        assert sorted(given) == sorted(f"job-{number}" for number in range(20))
