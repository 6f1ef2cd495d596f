"""The rules between times, each with its sentence."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from leasemill import App, Retry, Worker
from leasemill.errors import Invalid
from leasemill.kernel.model import SECOND, Policy
from leasemill.worker.timing import (
    SHORTEST_SHUTDOWN_S,
    Times,
    default_reaper_s,
    default_shutdown_s,
    shutdown_plan,
)


def times(lease_s: float = 30, **options: float | None) -> Times:
    kinds = {"charge": Policy(lease_ttl_us=round(lease_s * SECOND))}
    given: dict[str, float | None] = {"heartbeat_s": None, "reaper_s": None, "shutdown_s": None}
    return Times(kinds, ["billing"], **given | options)


@pytest.mark.parametrize("lease_s", [0.01, 1, 2, 30, 3600])
def test_the_defaults_fit_every_lease(lease_s: float) -> None:
    found = times(lease_s)
    assert found.broken_rules() == []
    assert found.reaper_s < lease_s
    assert found.shutdown_s <= lease_s
    assert times(lease_s, reaper_s=found.reaper_s, shutdown_s=found.shutdown_s).broken_rules() == []


def test_the_usual_times() -> None:
    assert (default_reaper_s(30), default_shutdown_s(30)) == (10, 20)


SHORTEST = r"the shortest lease, 6 s \(kind 'charge' in queue 'billing'\)"


@pytest.mark.parametrize(
    ("option", "seconds", "sentence"),
    [
        ("heartbeat_s", 2.0, f"heartbeat interval 2 s must be .* less than a third of {SHORTEST}: write at most 1.8"),
        ("heartbeat_s", 0.0, "heartbeat interval 0 s must be more than 0"),
        ("reaper_s", 6.0, f"reaper interval 6 s must be more than 0 and less than {SHORTEST}: write 3"),
        ("reaper_s", 0.0, "reaper interval 0 s must be more than 0"),
        ("shutdown_s", 6.5, f"shutdown timeout 6.5 s must not be negative nor longer than {SHORTEST}: write 6"),
    ],
)
def test_each_rule_has_one_sentence_with_a_value_to_write(option: str, seconds: float, sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        times(6, **{option: seconds}).check()


def test_all_broken_rules_are_reported_together() -> None:
    broken = times(3, heartbeat_s=1, reaper_s=3, shutdown_s=4).broken_rules()
    assert [sentence.split()[0] for sentence in broken] == ["heartbeat", "reaper", "shutdown"]


def test_bounds_of_retries_and_timeouts_hold_for_what_is_settled_not_only_for_what_is_written() -> None:
    kinds = {"charge": Policy(backoff_base_us=20 * SECOND)}
    found = Times(kinds, ["billing"], heartbeat_s=None, reaper_s=None, shutdown_s=None)
    found.adopt({"billing": Policy(backoff_cap_us=SECOND, timeout_us=0, max_retries=-1)})
    assert found.broken_rules() == [
        "timeout of kind 'charge' in queue 'billing' must be more than 0",
        "max_retries of kind 'charge' in queue 'billing' must be 0 or more",
        (
            "back-off base 20 s of kind 'charge' in queue 'billing' must not exceed its cap 1 s: "
            "raise the cap or lower the base"
        ),
    ]


def test_a_queues_policy_changes_the_shortest_lease() -> None:
    found = times(30, reaper_s=5)
    assert found.adopt({"billing": Policy(lease_ttl_us=4 * SECOND)})
    assert found.shortest_lease_s == 4
    assert "reaper interval 5 s" in found.broken_rules()[0]
    assert not found.adopt({"billing": Policy(lease_ttl_us=4 * SECOND)})


def test_a_given_time_that_does_not_fit_a_new_policy_is_replaced_for_as_long_as_that_is_so() -> None:
    given = times(30, heartbeat_s=5, reaper_s=9, shutdown_s=20)
    given.adopt({"billing": Policy(lease_ttl_us=2 * SECOND)})
    assert given.heartbeat_s == pytest.approx(0.6)
    assert (given.reaper_s, given.shutdown_s) == (1, 2)
    given.adopt({"billing": Policy(lease_ttl_us=60 * SECOND)})
    assert (given.heartbeat_s, given.reaper_s, given.shutdown_s) == (5, 9, 20)


@pytest.mark.parametrize("limit_s", [0, 0.5, 1, 2, 6, 20, 600])
def test_everything_a_shutdown_does_has_its_time_within_the_limit(limit_s: float) -> None:
    plan = shutdown_plan(100, limit_s)
    assert 100 <= plan.handlers_until < plan.grace_until < plan.reports_until < plan.closing_until < plan.gone_by
    assert plan.gone_by == 100 + max(limit_s, SHORTEST_SHUTDOWN_S)
    assert plan.handlers_until - 100 >= (plan.gone_by - 100) / 2 - 1e-9, "handlers have half of it or more"
    hurried = shutdown_plan(100, limit_s, waits_for_handlers=False)
    assert hurried.handlers_until == 100
    assert 100 < hurried.grace_until < hurried.reports_until < hurried.gone_by


def test_the_usual_shutdown() -> None:
    assert shutdown_plan(0, 20) == (16, 17, 19, 19.5, 20)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"heartbeat_interval": 10}, "heartbeat interval 10 s must be"),
        ({"reaper_interval": timedelta(seconds=30)}, "reaper interval 30 s must be"),
        ({"reaper_interval": "low-volume"}, "reaper interval 30 s must be"),
        ({"reaper_interval": "often"}, "reaper interval 'often' is not one of default, high-volume, low-volume"),
        ({"shutdown_timeout": 31}, "shutdown timeout 31 s must"),
        ({"shutdown_timeout": -1}, "shutdown timeout is -1 s; it must not be negative"),
        ({"concurrency": 0}, "concurrency is 0; write a whole number of at least 1"),
        ({"prefetch": -1}, "prefetch is -1; write a whole number of at least 0"),
        ({"queues": "billing"}, r"queues is a string, 'billing'; write \['billing'\]"),
        ({"queues": {"billing": 0}}, "the weight of queue 'billing' is 0"),
        ({"queues": ["no spaces"]}, "queue 'no spaces' is not a name"),
        ({"queues": []}, "no queue to serve: name at least one"),
        ({"worker_id": ""}, None),
    ],
)
def test_a_worker_is_refused_a_bad_set_at_start_up(options: dict[str, Any], sentence: str | None) -> None:
    app = App("memory:")

    @app.job(retry=Retry(max=1))
    def noop() -> None: ...

    if sentence is None:
        assert Worker(app, **options).id
    else:
        with pytest.raises(Invalid, match=sentence):
            Worker(app, **options)


async def test_a_worker_is_refused_a_queue_policy_that_does_not_fit_it() -> None:
    app = App("memory:")

    @app.job
    def noop() -> None: ...

    app.store.set_policy("default", Policy(lease_ttl_us=SECOND), by="me", reason="test")
    with pytest.raises(Invalid, match="reaper interval 5 s must be more than 0 and less than the shortest lease, 1 s"):
        await Worker(app, reaper_interval=5, handle_signals=False).run()
