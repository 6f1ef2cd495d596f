"""A grant and what it charges are one frame of the log, and so are a release and the pause it brings."""

from __future__ import annotations

from pathlib import Path

from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec, LimitTerms, LimitUse, Rules, Verb
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.crash.damage import HEADER, SEGMENT_BYTES, chain
from tests.crash.lab import open_simulated
from tests.lab.faults import SimulatedMachine

RULES = Rules(limits=(LimitUse("rated", "key"), LimitUse("placed")))


@rule("T2", "T11", "T13")
def test_torn_anywhere_a_grant_is_charged_or_was_not_made(tmp_path: Path) -> None:
    machine, clock = SimulatedMachine(), ManualClock()
    begun = clock.now()
    with open_simulated(machine, tmp_path, clock, segment_bytes=SEGMENT_BYTES) as store:
        store.set_limit("rated", LimitTerms(rate=1, per_us=5 * SECOND), by="ada", reason="why")
        store.set_limit("placed", LimitTerms(1), by="ada", reason="why")
        store.enqueue([JobSpec("job", "q", "k", rules=RULES)])
        (lease,) = store.claim("w", ["q"], 1)
        store.release([c.ReleaseReport("job", lease.token, None, "429", "rated", 20 * SECOND)])
    name = next(one for one in machine.files() if one.startswith("segment-"))
    content = machine.files()[name]
    ends = [frame.end for frame in chain(content, 0)]
    seen: set[tuple[tuple[Verb | None, ...], int | None]] = set()
    for offset in range(HEADER, ends[-1] + 1):
        torn = machine.copy()
        torn.put(name, content[:offset])
        with open_simulated(torn, tmp_path, clock, segment_bytes=SEGMENT_BYTES) as store:
            rated, placed = store.limit("rated"), store.limit("placed")
            job = store.job("job")
            if rated is not None and placed is not None and job is not None:
                (key,) = rated.keys
                opens_in_us = None if key.opens_at is None else key.opens_at - begun
                assert placed.held == key.held == 0, "no lease outlives the boot it was granted in"
                seen.add((tuple(execution.ended_by for execution in job.executions), opens_in_us))
    assert seen == {((), None), ((Verb.EXPIRE,), 5 * SECOND), ((Verb.RELEASE,), 20 * SECOND)}
