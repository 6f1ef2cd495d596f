"""How a job that is bound to others is explained: members, callbacks, chains, and jobs that are not there yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasemill import PREVIOUS, App, Fail, chain
from leasemill.kernel import commands as c
from leasemill.operator.explain import Explanation, Situation, explain
from leasemill.operator.facts import gather
from leasemill.operator.missing_job import explain_missing
from leasemill.testing.clock import ManualClock
from leasemill.testing.drain import drain, in_memory

app = App()
failing: set[int] = set()


@app.job(retry=0)
async def load(row: int) -> int:
    if row in failing:
        raise Fail(f"row {row}")
    return row


@app.job
async def double(number: int) -> int:
    return 2 * number


@app.job
async def report(name: str) -> str:
    return name


@pytest.fixture(autouse=True)
def clock() -> Iterator[ManualClock]:
    failing.clear()
    with in_memory(app) as made:
        yield made


def explained(job_id: str, clock: ManualClock) -> Explanation:
    facts = gather(app.store, job_id, clock.now())
    assert facts is not None
    return explain(facts)


def absent(job_id: str) -> Explanation:
    found = explain_missing(app.store, job_id)
    assert found is not None
    return found


def make_group(rows: int, *, is_sealed: bool = True) -> None:
    group = app.group("import-17", then=report.call("17"), on_end=report.call("end of 17"))
    group.enqueue_many(load.options(job_id=f"row-{row}").call(row) for row in range(rows))
    if is_sealed:
        group.seal()


def test_a_member_names_its_group(clock: ManualClock) -> None:
    make_group(3, is_sealed=False)
    assert (
        "It is a member of group 'import-17': 3 members, 3 unfinished; it is not sealed."
        in explained("row-0", clock).now
    )
    failing.add(1)
    app.groups.get("import-17").seal()
    drain(app, clock)
    assert (
        "It is a member of group 'import-17': 3 members, 2 succeeded, 1 failed, 0 unfinished."
        in explained("row-1", clock).now
    )


def test_a_callback_names_what_it_waited_for(clock: ManualClock) -> None:
    make_group(2)
    drain(app, clock)
    assert (
        "It is the `then` of group 'import-17': all its 2 members have succeeded."
        in explained("import-17/then", clock).now
    )
    assert (
        "It is the `on_end` of group 'import-17': all its 2 members had ended." in explained("import-17/end", clock).now
    )


def test_a_callback_of_an_open_group_waits_for_the_seal() -> None:
    make_group(2, is_sealed=False)
    found = absent("import-17/then")
    assert (found.state, found.situation) == (None, Situation.WAITS_FOR_GROUP)
    assert found.now[1] == "It waits for the group to be sealed: until then more members may come."
    assert found.advice == ["leasemill groups seal import-17 --reason …"]


def test_a_callback_of_a_running_group_waits_for_members(clock: ManualClock) -> None:
    make_group(17)
    app.store.cancel([f"row-{row}" for row in range(14)], by="ann", reason="enough")
    found = absent("import-17/end")
    assert found.now == [
        (
            "Job 'import-17/end' (report, queue 'default') has not been enqueued yet: "
            "it is the `on_end` callback of group 'import-17'."
        ),
        "It waits for 3 of 17 members.",
        "The group has 17 members, 14 cancelled, 3 unfinished.",
    ]


def test_a_then_that_some_members_prevented_waits_for_a_redrive(clock: ManualClock) -> None:
    failing.add(1)
    make_group(3)
    drain(app, clock)
    found = absent("import-17/then")
    assert found.now[1] == (
        "It is enqueued when all 3 members have succeeded: 1 ended without success, 0 are unfinished."
    )
    assert found.advice == ["leasemill groups redrive import-17 --reason …"]


def test_a_then_that_cancelled_members_prevent_counts_them_while_the_group_runs() -> None:
    make_group(17)
    app.store.cancel([f"row-{row}" for row in range(14)], by="ann", reason="enough")
    assert absent("import-17/then").now[1] == (
        "It is enqueued when all 17 members have succeeded: 14 ended without success, 3 are unfinished."
    )


def test_the_advice_for_a_cancelled_group_brings_its_then(clock: ManualClock) -> None:
    make_group(2)
    app.store.cancel_group("import-17", by="ann", reason="wrong file")
    found = absent("import-17/then")
    assert found.advice == [
        "leasemill jobs list --group import-17 --state cancelled",
        "leasemill jobs redrive JOB_ID… --include-cancelled --reason …",
    ]
    where = c.JobFilter(job_ids=("row-0", "row-1"))
    app.store.redrive(where, by="ann", reason="it was right", include_cancelled=True)
    drain(app, clock)
    assert explained("import-17/then", clock).situation is Situation.SUCCEEDED


def test_a_callback_that_was_purged_is_not_awaited(clock: ManualClock) -> None:
    make_group(1)
    drain(app, clock)
    app.store.purge(c.JobFilter(job_ids=("import-17/end", "import-17/then")), by="ann", reason="room")
    for job_id in ("import-17/end", "import-17/then"):
        assert absent(job_id).now[1] == "It was enqueued when the group ended; retention or purge has removed it."


def test_a_job_of_a_chain_names_those_around_it(clock: ManualClock) -> None:
    chain(load.options(job_id="first").call(1), double.call(PREVIOUS), double.call(PREVIOUS)).enqueue()
    assert (
        "In its chain it is followed by double, double: its success enqueues the next." in explained("first", clock).now
    )
    waiting = absent("first/then/then")
    assert waiting.situation is Situation.WAITS_FOR_CHAIN
    assert waiting.now == [
        "Job 'first/then/then' (double, queue 'default') does not exist: it is a later job of a chain.",
        "The chain is at job 'first' (load), which is READY: its success enqueues the next.",
    ]
    assert explain_missing(app.store, "first/then/then/then") is None
    drain(app, clock)
    assert "its success enqueued 'first/then'." in explained("first", clock).now[-1]
    assert (
        "It was enqueued by the success of 'first', the job before it in its chain."
        in explained("first/then", clock).now
    )
    app.store.purge(c.JobFilter(job_ids=("first/then/then",)), by="ann", reason="room")
    assert "retention or purge has removed it" in absent("first/then/then").now[1]


def test_a_chain_that_stopped_says_where(clock: ManualClock) -> None:
    failing.add(1)
    chain(load.options(job_id="first").call(1), double.call(PREVIOUS)).enqueue()
    drain(app, clock)
    assert explained("first", clock).now[-1] == (
        "In its chain it is followed by double: the chain has stopped here, and a redrive continues it."
    )
    found = absent("first/then")
    assert found.now[1] == "The chain has stopped at job 'first' (load), which is FAILED: a redrive continues it."
    assert found.advice == ["leasemill jobs explain first", "leasemill jobs redrive --id first --reason …"]


@pytest.mark.parametrize("job_id", ["nobody", "nobody/then", "row-0/then", "/then", "import-17/0"])
def test_what_nothing_would_enqueue_is_not_explained(job_id: str) -> None:
    make_group(1)
    assert explain_missing(app.store, job_id) is None
