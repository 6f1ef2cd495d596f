"""`python -m tests.golden.script`: writes tests/golden/format-6, a folder as format 6 has it. Never run it to make a
test pass: files that differ mean that folders of users cannot be read any more.

`format-4` is the same run without a clock that is set (format 5 changes no record), `format-3` without orders to
workers, `format-2` without deaths as well; all are still written so.
`format-1` and `format-1b` are folders of earlier versions, read and never written again: `format-1` from before
LeaseReleased had its field `error` and the manifest its list of acquire queues, both from before headers and rules.

A scripted run with fixed time, ids and tokens, in which everything that can happen does, over a snapshot, a sealed
segment and one in use.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import msgspec
from msgspec.structs import replace

from leasemill.kernel import commands as c
from leasemill.kernel.image import digest, image, jobs_in_order
from leasemill.kernel.model import (
    MILLISECOND,
    SECOND,
    ChainedJob,
    JobSpec,
    LimitTerms,
    LimitUse,
    OnFailure,
    Order,
    Policy,
    Rules,
    UniqueKey,
    UniqueUntil,
)
from leasemill.kernel.schedule import ScheduleSpec, is_next
from leasemill.kernel.state import State
from leasemill.kernel.verbs import ticks
from leasemill.store.file.format import SEGMENT_HEADER_BYTES, Frame, read_frame
from leasemill.store.file.store import FileStore
from leasemill.testing.clock import ManualClock
from tests.crash.lab import open_simulated, snapshot, state_of
from tests.lab.faults import SimulatedMachine

FOLDER: Final = Path(__file__).parent / "format-6"
WITHOUT_CLOCK: Final = Path(__file__).parent / "format-4"
WITHOUT_ORDERS: Final = Path(__file__).parent / "format-3"
WITHOUT_DEATHS: Final = Path(__file__).parent / "format-2"
OLDER: Final = (Path(__file__).parent / "format-1", Path(__file__).parent / "format-1b")
SEGMENT_BYTES: Final = 4096


class Script:
    """The run; tokens are t1, t2, …"""

    def __init__(self, store: FileStore, clock: ManualClock) -> None:
        self._store = store
        self._clock = clock
        self._tokens = 0

    def ask(self, command: c.Command[Any]) -> Any:
        self._clock.advance(us=1_000)
        return self._store.run(command)

    def enqueue(self, *ids: str, **fields: Any) -> None:
        self.ask(c.Enqueue([JobSpec(one, kind="send", **({"queue": "mail"} | fields)) for one in ids]))

    def claim(self, limit: int = 1, queue: str = "mail") -> list[tuple[str, str]]:
        tokens = [f"t{self._tokens + number}" for number in range(1, limit + 1)]
        self._tokens += limit
        leases = self.ask(c.Claim("worker-1", [queue], limit, tokens, f"request-{self._tokens}"))
        return [(lease.job.id, lease.token) for lease in leases]

    def before_the_snapshot(self) -> None:
        self.enqueue("done", "failed", "dead", "later", delay_us=0)
        self.enqueue("lane-1", "lane-2", lane="account/7", priority=3)
        (lease,) = self.claim()
        self.ask(c.Ack([c.AckReport(*lease, b'{"sent":true}')]))
        self.ask(c.Cancel(["dead"], "ada", "a mistake"))
        self.ask(c.Acquire([c.AcquireRequest("offsets", "topic", one, "worker-2", f"a{one}") for one in (1, 2)]))
        self.ask(c.Ack([c.AckReport("offsets/topic/1", "a1")]))
        self.enqueue(
            *(f"filler-{number}" for number in range(60)), payload=b'{"text":"%s"}' % (b"x" * 20), run_at=2**52
        )
        self.enqueue(*(f"more-{number}" for number in range(60)), run_at=2**52)

    def behind_it(self, *, has_deaths: bool, has_orders: bool) -> None:
        self.everything()
        if has_orders:
            self.orders()
        if has_deaths:
            self.enqueue("orphan", queue="dying")
            (lease,) = self.claim(queue="dying")
            self.ask(c.Death([c.DeathReport(*lease, "worker worker-1 ended: exit status 137, seen by its supervisor")]))
        self.enqueue(*(f"last-{number}" for number in range(50)), run_at=2**52)

    def everything(self) -> None:
        """Every event there is, but for a death, an order and a clock that is set."""
        self.rules()
        self.ask(c.SetPolicy("mail", Policy(max_retries=1, on_failure=OnFailure.BLOCK), "ada", "be strict"))
        self.ask(c.Pause("mail", "ada", "a break"))
        self.ask(c.Resume("mail", "ada", "it is over"))
        self.enqueue("full", "of", lane=None, policy=Policy(3, 60 * SECOND, 90 * SECOND, 5, 500, 30 * SECOND))
        leases = dict(self.claim(5))
        held = list(leases.items())
        self.ask(c.Start([c.StartReport(*held[0], 500), c.StartReport(*held[1])]))
        self.ask(c.Extend([c.LeaseRef(*one) for one in held]))
        self.ask(c.Commit(*held[0], b"[1,2]", [c.Followup("mail", "receipt", b"{}", "account/7", 1)]))
        self.ask(c.Ack([c.AckReport(*held[0])]))
        self.ask(c.Nack([c.NackReport(*held[1], "it broke", jitter=0.5)]))
        self.ask(c.Release([c.ReleaseReport(*held[2], 2_000)]))
        self.ask(c.Nack([c.NackReport(*held[3], "for good", is_permanent=True)]))
        self.ask(c.Acquire([c.AcquireRequest("offsets", "topic", 2, "worker-2", "a22")]))
        kept = c.NackReport("offsets/topic/2", "a22", "kept", keep_lease=True, report_id="r1")
        self.ask(c.Nack([kept]))
        self._clock.advance(s=120)
        self.ask(c.Expire(10))
        self.ask(c.Ack([c.AckReport(*held[4])]))
        self.ask(c.Cancel(["more-1", "lane-2"], "ada", "no more"))
        self.ask(c.Redrive(c.JobFilter(job_ids=("more-1",)), "ada", "after all", 10, include_cancelled=True))
        self.ask(c.Purge(c.JobFilter(job_ids=("dead",)), "ada", "tidy up", 10))
        self.ask(c.Prune(0, 1, 10))
        first, _ = self.claim(2)
        self.ask(c.Release([c.ReleaseReport(*first, 2_000, "no handler for kind 'send'")]))
        self._clock.advance(us=3 * MILLISECOND)

    def orders(self) -> None:
        self.ask(c.OrderWorker("worker-1", "instance-1", Order.QUIET, "ada", "a leak"))
        self.ask(c.OrderWorker("worker-2", "instance-2", Order.STOP, "ada", "moving"))
        self.ask(c.OrderWorker("worker-1", "instance-1", Order.RESUME, "ada", "it is mended"))

    def rules(self) -> None:
        """Headers, unique keys, limits, groups, chains and schedules."""
        self.enqueue("traced", headers={"trace": "1"}, queue="ruled")
        debounced = Rules(unique=UniqueKey("user/7", UniqueUntil.STARTED, 0, 60 * SECOND))
        kept = Rules(unique=UniqueKey("user/8", keep_us=3_600 * SECOND))
        self.enqueue("debounced", queue="ruled", rules=debounced, delay_us=SECOND)
        self.enqueue("again", queue="ruled", rules=debounced, payload=b'{"latest":true}', delay_us=SECOND)
        self.enqueue("kept", "merged", queue="ruled", rules=kept)
        self.limits()
        self.groups()
        self.schedules()

    def limits(self) -> None:
        self.ask(c.DeclareLimits([c.DeclaredLimit("api", LimitTerms(2, 100, SECOND, 10))], "worker-1"))
        self.ask(c.SetLimit("api", LimitTerms(places=1), "ada", "their incident"))
        limits = Rules(limits=(LimitUse("api", "ann"), LimitUse("others")))
        self.enqueue("limited", "waits", queue="limited", rules=limits)
        ((job_id, token),) = self.claim(2, queue="limited")
        self.ask(c.Release([c.ReleaseReport(job_id, token, limit="api", hold_us=SECOND)]))
        self.ask(c.ClearLimit("api", "ada", "it is over"))
        self.ask(c.SetLimit("queue:limited", LimitTerms(places=7), "ada", "gently"))

    def groups(self) -> None:
        then = ChainedJob("grouped", "report", result_name=None)
        self.ask(c.CreateGroup("outer", on_end=then))
        self.ask(c.CreateGroup("inner", then, ChainedJob("grouped", "notify", headers={"of": "inner"}), "outer"))
        chain = (ChainedJob("grouped", "parse", b'{"a":1}', result_name="text"), ChainedJob("grouped", "store"))
        self.enqueue("fetch", queue="grouped", rules=Rules(group="inner", chain=chain))
        self.enqueue("other", queue="grouped", rules=Rules(group="inner"))
        for group in ("inner", "outer"):
            self.ask(c.SealGroup(group))
        while leases := self.claim(1, queue="grouped"):
            self.ask(c.Ack([c.AckReport(*leases[0], b'"text"')]))
        self.ask(c.CreateGroup("empty"))
        self.ask(c.SealGroup("empty", "ada", "because"))
        self.ask(c.Prune(self._clock.now() + SECOND, 1_000, 10))

    def schedules(self) -> None:
        """By the caller's clock, far from the store's, as versions did that wrote these folders."""
        noon, minute = 1_900_000_800 * SECOND, 60 * SECOND
        call = JobSpec("", "ticks", "tidy", b'{"days":3}')
        tidy = ScheduleSpec("tidy", "* * * * *", "Europe/Berlin", call, jitter_us=SECOND)
        self.ask(c.SetSchedule(tidy, noon, noon - minute, "ada", "at start"))
        fires = [noon, noon + minute, noon + 2 * minute]
        with patch.object(ticks, "is_next", lambda schedule, fire, _now: is_next(schedule, fire, fire.due[-1])):
            self.ask(c.FireTicks([c.TickFire("tidy", 1, noon, tuple(fires), noon + 3 * minute)], fires[-1]))
        self.ask(c.FireNow("tidy", noon + 200 * SECOND, "ada", "by hand"))
        self.ask(c.Backfill("tidy", (noon - 2 * minute,), "ada", "for the report"))
        self.ask(c.PauseSchedule("tidy", "ada", "a break"))
        passed = (noon + 3 * minute, noon + 4 * minute)
        self.ask(c.ResumeSchedule("tidy", passed[0], passed, noon + 5 * minute, "ada", "it is over"))
        self.ask(c.SetSchedule(replace(tidy, name="gone"), noon, noon - 1, "ada", "at start"))
        self.ask(c.RemoveSchedule("gone", "ada", "no more"))


def written(folder: Path) -> tuple[SimulatedMachine, State]:
    """The run that gives this folder."""
    machine, clock = SimulatedMachine(), ManualClock()
    with tempfile.TemporaryDirectory() as scratch:
        store = open_simulated(machine, Path(scratch), clock, segment_bytes=SEGMENT_BYTES)
        script = Script(store, clock)
        script.before_the_snapshot()
        if snapshot(machine, Path(scratch), segment_bytes=SEGMENT_BYTES) is None:
            raise AssertionError("the script is too short for a snapshot")
        script.behind_it(has_deaths=folder != WITHOUT_DEATHS, has_orders=folder in (FOLDER, WITHOUT_CLOCK))
        if folder == FOLDER:
            store.set_clock()
            script.enqueue("afterwards")
        return machine, state_of(store)


def dumped(state: State, files: dict[str, bytes]) -> dict[str, Any]:
    """The state and the events of the segments, for people and for comparison."""
    plain = {
        "digest": digest(state),
        "image": image(state),
        "jobs": list(jobs_in_order(state)),
        "events": [
            [type(event).__name__, *msgspec.structs.astuple(event)]
            for name, content in files.items()
            if name.startswith("segment-")
            for event in _events(content, int(name.split("-")[1], 16))
        ],
    }
    loaded: dict[str, Any] = json.loads(msgspec.json.encode(plain))
    return loaded


def expected(folder: Path) -> Path:
    """What is in a folder, as JSON."""
    return folder.with_suffix(".json")


def _events(content: bytes, first: int) -> list[Any]:
    events: list[Any] = []
    position = first
    while isinstance(found := read_frame(content, SEGMENT_HEADER_BYTES + position - first, position), Frame):
        position = found.end
        events += found.events() if found.body else []
    return events


def _lines(document: dict[str, Any]) -> str:
    """JSON with a line for each job and each event, so that a difference can be read."""
    parts = []
    for key, value in document.items():
        items = ",\n".join(f"  {json.dumps(one)}" for one in value) if isinstance(value, list) and value else ""
        parts.append(f"{json.dumps(key)}: " + (f"[\n{items}\n]" if items else json.dumps(value)))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    machine, state = written(FOLDER)
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.iterdir():
        path.unlink()
    for name, content in machine.files().items():
        (FOLDER / name).write_bytes(content)
    expected(FOLDER).write_text(_lines(dumped(state, machine.files())))


if __name__ == "__main__":
    main()
