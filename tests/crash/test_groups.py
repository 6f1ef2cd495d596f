"""The last end of a group and its callbacks, and a success and the next of its chain, are one frame of the log."""

from __future__ import annotations

from pathlib import Path

from leasemill.kernel import commands as c
from leasemill.kernel.model import ChainedJob, JobSpec, Rules
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.crash.damage import HEADER, SEGMENT_BYTES, chain
from tests.crash.lab import open_simulated
from tests.lab.faults import SimulatedMachine

RULES = Rules(group="group", chain=(ChainedJob("q", "next"),))


@rule("B2", "B6")
def test_torn_anywhere_an_end_has_caused_all_or_nothing(tmp_path: Path) -> None:
    machine, clock = SimulatedMachine(), ManualClock()
    with open_simulated(machine, tmp_path, clock, segment_bytes=SEGMENT_BYTES) as store:
        store.create_group("group", then=ChainedJob("q", "then"), on_end=ChainedJob("q", "end"))
        store.enqueue([JobSpec("first", "q", "k", rules=RULES)])
        store.seal_group("group")
        for _ in range(2):
            (lease,) = store.claim("w", ["q"], 1)
            store.ack([c.AckReport(lease.job.id, lease.token)])
    name = next(one for one in machine.files() if one.startswith("segment-"))
    content = machine.files()[name]
    ends = [frame.end for frame in chain(content, 0)]
    seen: set[tuple[int, int, int]] = set()
    for offset in range(HEADER, ends[-1] + 1):
        torn = machine.copy()
        torn.put(name, content[:offset])
        with open_simulated(torn, tmp_path, clock, segment_bytes=SEGMENT_BYTES) as store:
            group = store.group("group")
            if group is not None:
                seen.add((group.total, group.succeeded, len(store.jobs().jobs)))
                assert group.is_over == (group.succeeded == 2)
    assert seen == {(0, 0, 0), (1, 0, 1), (2, 1, 2), (2, 2, 4)}
