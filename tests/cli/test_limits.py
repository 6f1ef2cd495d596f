"""`leasemill limits`, and limits in the other commands, on a folder of jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leasemill.cli import main
from leasemill.kernel.commands import ReleaseReport
from leasemill.kernel.model import SECOND, JobSpec, LimitTerms, LimitUse, Rules
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from leasemill.testing.rules import rule

WHY = ("--reason", "their incident", "--by", "ada")


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEASEMILL_URL", raising=False)
    with open_store("file:.leasemill") as store:
        store.declare_limits({"stripe": LimitTerms(2), "api": LimitTerms(rate=1, per_us=3_600 * SECOND)}, by="worker-1")
        yield store


def leasemill(*arguments: str, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == exit_code, result.output
    return result


def document(*arguments: str) -> Any:
    return json.loads(leasemill(*arguments, "--json").output)


def enqueue(store: Store, *job_ids: str, queue: str = "mail", under: str | None = None) -> None:
    rules = None if under is None else Rules(limits=(LimitUse(*under.split("/")),))
    store.enqueue([JobSpec(job_id, queue, "kind", rules=rules) for job_id in job_ids])


def test_limits_are_listed_with_what_is_held_and_waits(store: Store) -> None:
    enqueue(store, "a", "b", "c", under="stripe")
    store.claim("w", ["mail"], 10)
    lines = leasemill("limits", "list").output.splitlines()
    assert [line.split() for line in lines] == [
        ["limit", "numbers", "from", "held", "waiting", "next"],
        ["api", "1/h", "code", "0", "0", "-"],
        ["stripe", "2", "places", "code", "2", "1", "-"],
    ]
    assert [view["limit"] for view in document("limits", "list")] == ["api", "stripe"]


@rule("T6")
def test_an_operator_sets_a_limit_and_clears_it(store: Store) -> None:
    output = leasemill("limits", "set", "stripe", "--places", "1", "--rate", "100/min", "--burst", "10", *WHY).output
    assert output == "limit stripe: 1 place, 100/min, burst 10\n"
    shown = leasemill("limits", "show", "stripe").output
    assert "2 places, by worker-1" in shown
    assert "by ada" in shown
    assert "(their incident)" in shown
    assert document("limits", "set", "stripe", "--rate", "3/10s", *WHY) == {
        "limit": "stripe",
        "terms": {"places": 1, "rate": 3, "burst": 1, "per_s": 10.0},
    }
    assert leasemill("limits", "clear", "stripe", *WHY).output == "limit stripe: 2 places\n"


def test_a_limit_is_shown_with_its_keys(store: Store) -> None:
    enqueue(store, "a", "b", "c", under="stripe/x")
    enqueue(store, "d", under="stripe/y")
    store.claim("w", ["mail"], 10)
    output = leasemill("limits", "show", "stripe").output
    assert ["x", "2", "1", "-", "a,", "b"] in [line.split() for line in output.splitlines()]
    (key,) = document("limits", "show", "stripe", "--key", "y")["keys"]
    assert (key["key"], key["held"], key["holders"]) == ("y", 1, ["d"])


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (("set", "strip", "--places", "1", *WHY), 1, "did you mean 'stripe'"),
        (("set", "stripe", *WHY), 2, "nothing to set"),
        (("set", "stripe", "--burst", "5", *WHY), 2, "--rate"),
        (("set", "stripe", "--rate", "fast", *WHY), 2, "is not a rate"),
        (("set", "stripe", "--rate", "0/s", *WHY), 2, "is not a rate"),
        (("set", "stripe", "--rate", "3/00s", *WHY), 2, "is not a rate"),
        (("set", "stripe", "--rate", "٣/s", *WHY), 2, "is not a rate"),
        (("set", "stripe", "--places", "1"), 2, "--reason"),
        (("show", "nobody"), 1, "there is no limit 'nobody'"),
        (("clear", "nobody", *WHY), 1, "there is no limit 'nobody'"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_write(arguments: tuple[str, ...], exit_code: int, says: str) -> None:
    assert says in leasemill("limits", *arguments, exit_code=exit_code).output


def test_an_unknown_limit_is_made_on_request(store: Store) -> None:
    leasemill("limits", "set", "new", "--places", "0", "--create", *WHY)
    view = store.limit("new")
    assert view is not None
    assert view.terms == LimitTerms(0)


def test_a_queue_has_a_limit_of_its_own(store: Store) -> None:
    enqueue(store, "a", "b")
    assert leasemill("queues", "set", "mail", "--limit", "1", *WHY).output == ("queue mail: no policy, limit 1\n")
    assert len(store.claim("w", ["mail"], 10)) == 1
    explained = leasemill("jobs", "explain", "b").output
    assert "It waits for a place in queue 'mail', whose limit is 1 place: 1 are held." in explained
    assert "full limits with waiting jobs: queue:mail (1 of 1 held, 1 waiting)" in leasemill("stats").output
    leasemill("queues", "set", "mail", "--max-retries", "2", *WHY)
    assert document("queues", "set", "mail", "--max-retries", "3", *WHY)["limit"] == 1
    assert document("queues", "set", "mail", "--clear", *WHY)["limit"] is None
    assert len(store.claim("w", ["mail"], 10)) == 1


def test_a_job_is_explained_by_the_limit_that_keeps_it(store: Store) -> None:
    enqueue(store, "a", "b", "c", under="stripe/x")
    store.claim("w", ["mail"], 10)
    explained = document("jobs", "explain", "c")
    assert explained["situation"] == "waits for a place under a limit"
    assert "It waits for a place under limit 'stripe' for 'x': 2 of 2 places held by a, b." in explained["now"]
    assert explained["advice"] == ["leasemill limits show stripe"]


def test_a_job_is_explained_by_the_rate_that_keeps_it(store: Store) -> None:
    enqueue(store, "a", "b", under="api")
    store.claim("w", ["mail"], 10)
    explained = document("jobs", "explain", "b")
    assert explained["situation"] == "waits for a rate"
    assert any("The rate of limit 'api' (1/h) allows it to start at " in line for line in explained["now"])


def test_a_job_is_explained_by_the_pause_of_its_limit(store: Store) -> None:
    enqueue(store, "a", under="stripe")
    (lease,) = store.claim("w", ["mail"], 1)
    store.release([ReleaseReport("a", lease.token, None, "429", "stripe", 3_600 * SECOND)])
    explained = document("jobs", "explain", "a")
    assert explained["situation"] == "waits for a rate"
    assert any("A handler has paused limit 'stripe' until " in line for line in explained["now"])
    assert "next" in leasemill("limits", "show", "stripe").output
