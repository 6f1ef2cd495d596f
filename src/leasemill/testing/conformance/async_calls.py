"""Every verb in async code answers as it does in blocking code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from leasemill.kernel import commands as c
from leasemill.kernel.model import NEVER, Policy
from leasemill.store.base import Store
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import LEASE_US, spec
from leasemill.testing.rules import rule

Run = Callable[[c.Command[Any]], Awaitable[Any]]


def blocking(store: Store) -> Run:
    async def run(command: c.Command[Any]) -> Any:
        return store.run(command)

    return run


async def walk(run: Run, harness: Harness, name: str) -> list[Any]:
    """Every verb, accepted and refused, in a queue of this name; returns all the answers."""
    answers: list[Any] = []

    async def note(command: c.Command[Any]) -> Any:
        answer = await run(command)
        answers.append(answer)
        return answer

    def claim(limit: int, request: str, kinds: dict[str, Policy]) -> c.Claim:
        tokens = [f"{request}-token-{number}" for number in range(limit)]
        return c.Claim("worker", [name], limit, tokens, f"{request}-{name}", kinds)

    ids = [f"{name}-{number}" for number in range(5)]
    jobs = [spec(job_id, queue=name) for job_id in ids]
    await note(c.Enqueue(jobs[:4]))
    await note(c.Enqueue([jobs[3], spec(ids[3], queue=name, priority=1), jobs[4]]))
    leases: list[c.Lease] = await note(claim(4, "first", {}))
    await note(claim(4, "first", {}))
    first, second, third, fourth = [(lease.job.id, lease.token) for lease in leases]
    await note(c.Start([c.StartReport(*first, 1), c.StartReport(*second), c.StartReport("none", "none")]))
    harness.clock.advance(s=1)
    await note(c.Extend([c.LeaseRef(*first), c.LeaseRef("none", "none")]))
    followups = [c.Followup(f"{name}-later", "kind")]
    await note(c.Commit(*first, b"1", followups))
    await note(c.Commit(*first, b"1", followups))
    await note(c.Ack([c.AckReport(*first), c.AckReport(*first), c.AckReport(*second, b"[2]")]))
    await note(c.Nack([c.NackReport(*third, "broke", jitter=0.5), c.NackReport(*third, "broke", jitter=0.5)]))
    await note(c.Release([c.ReleaseReport(*fourth, 5), c.ReleaseReport(*second)]))
    (short,) = await note(claim(1, "second", {"kind": Policy(max_retries=0)}))
    await note(c.Start([c.StartReport(short.job.id, short.token)]))
    harness.clock.advance(us=LEASE_US)
    await note(c.Expire(10))
    await note(c.Ack([c.AckReport(short.job.id, short.token)]))
    requests = [c.AcquireRequest(f"{name}-offsets", "A", offset, "worker", f"token-{offset}") for offset in (1, 2, 1)]
    await note(c.Acquire(requests))
    for job_id in (*ids, "nowhere"):
        await note(c.GetJob(job_id))
    assert (await run(c.GetTotals())).counts
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
        answers = plainly(asyncio.run(walk(blocking(store), harness, "alpha")), "alpha", begun)
        begun = harness.clock.now()
        async_answers = plainly(asyncio.run(walk(store.arun, harness, "omega")), "omega", begun)
        assert async_answers == answers

    @rule("C7")
    def test_calls_may_overlap_in_one_event_loop(self, harness: Harness) -> None:
        store = harness.store

        async def overlap() -> list[str]:
            await asyncio.gather(*(store.arun(c.Enqueue([spec(f"job-{number}")])) for number in range(20)))
            commands = [
                c.Claim(f"worker-{number}", ["work"], 4, store.entropy.tokens(4), f"request-{number}")
                for number in range(6)
            ]
            claims = await asyncio.gather(*(store.arun(command) for command in commands))
            leases = [lease for claimed in claims for lease in claimed]
            reports = [c.AckReport(lease.job.id, lease.token) for lease in leases]
            await asyncio.gather(*(store.arun(c.Ack([report])) for report in reports))
            return [lease.job.id for lease in leases]

        given = asyncio.run(overlap())
        assert sorted(given) == sorted(f"job-{number}" for number in range(20))
