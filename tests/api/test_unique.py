"""Unique, Debounce and Throttle: what users write, and the handles they get."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from leasemill import App, Context, Debounce, Invalid, JobState, JobType, Throttle, Unique
from leasemill.kernel.model import SECOND, UniqueKey, UniqueUntil
from leasemill.store.memory import MemoryStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.drain import drain
from leasemill.testing.rules import rule


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(clock: ManualClock) -> Iterator[App]:
    with App(store=MemoryStore(clock)) as made:
        yield made


def key_of(job: JobType[..., Any], *args: Any, **kwargs: Any) -> str | None:
    rules = job.call(*args, **kwargs).spec.rules
    return None if rules is None or rules.unique is None else rules.unique.key


def declared(app: App, name: str = "fetch", **given: Any) -> JobType[..., Any]:
    @app.job(name=name, **given)
    def fetch(url: str, depth: int = 1, note: str | None = None) -> str:
        return url

    return fetch


# What users get ------------------------------------------------------------------------------------------------


@rule("U1")
def test_a_second_call_has_the_handle_and_the_result_of_the_first(app: App, clock: ManualClock) -> None:
    fetch = declared(app, unique=True)
    first, second = fetch.enqueue("a"), fetch.enqueue("a")
    assert (first.is_duplicate, second.is_duplicate) == (False, True)
    assert second.id == first.id
    drain(app, clock)
    assert second.result(timeout=1) == "a"
    third = fetch.enqueue("a")
    assert not third.is_duplicate
    assert third.id != first.id


@rule("U1")
def test_a_key_of_ones_own_is_shared_between_kinds(app: App) -> None:
    fetch, check = declared(app), declared(app, "check", unique=Unique(until="started"))
    first = fetch.options(unique="crm:42").enqueue("a")
    second = check.options(unique="crm:42").enqueue("b")
    assert (second.is_duplicate, second.id) == (True, first.id)
    unique = check.options(unique="crm:42").call("b").spec.rules
    assert unique is not None
    assert unique.unique == UniqueKey("crm:42", UniqueUntil.STARTED)


@rule("U5")
def test_calls_of_one_batch_see_each_other(app: App) -> None:
    fetch = declared(app, unique=Unique(by="url"))
    handles = fetch.enqueue_many([fetch.call("a", 1), fetch.call("b"), fetch.call("a", 2)])
    assert [handle.is_duplicate for handle in handles] == [False, False, True]
    assert handles[2].id == handles[0].id


@rule("U5")
def test_a_follow_up_that_is_merged_has_the_holders_handle(app: App, clock: ManualClock) -> None:
    fetch = declared(app, unique=Unique(by="url"), queue="other")
    seen: list[tuple[str, bool]] = []

    @app.job
    def parent(ctx: Context) -> None:
        with ctx.commit() as tx:
            handles = [tx.enqueue(fetch, "a"), tx.enqueue(fetch, "b"), tx.enqueue(fetch, "b", 2)]
        seen.extend((handle.id, handle.is_duplicate) for handle in handles)

    holder = fetch.options(delay=3600).enqueue("a")
    started = parent.enqueue()
    drain(app, clock)
    assert seen == [(holder.id, True), (f"{started.id}/1", False), (f"{started.id}/1", True)]


@rule("U8", "U9")
def test_a_debounced_job_runs_once_with_the_last_arguments(app: App, clock: ManualClock) -> None:
    ran: list[tuple[str, int]] = []

    @app.job(unique=Debounce(by="document", wait=5, at_most=60))
    def reindex(document: str, version: int) -> int:
        ran.append((document, version))
        return version

    handles = [reindex.enqueue("a", version) for version in (1, 2, 3)]
    other = reindex.enqueue("b", 1)
    assert {handle.id for handle in handles} == {handles[0].id}
    assert handles[0].record().available_at == clock.now() + 5 * SECOND
    drain(app, clock)
    assert sorted(ran) == [("a", 3), ("b", 1)]
    assert [handle.result(timeout=1) for handle in handles] == [3, 3, 3]
    assert handles[0].record().replaced == 2
    assert other.record().state is JobState.SUCCEEDED


@rule("U10")
@pytest.mark.parametrize("trailing", [False, True])
def test_throttled_calls_run_once_and_with_trailing_once_more(app: App, clock: ManualClock, trailing: bool) -> None:
    ran: list[int] = []

    @app.job(unique=Throttle(by="user", per=timedelta(hours=1), trailing=trailing))
    def notify(user: str, number: int) -> None:
        ran.append(number)

    for number in (1, 2, 3):
        notify.enqueue("ann", number)
    drain(app, clock)
    assert ran == ([1, 3] if trailing else [1])


# U7: the key ---------------------------------------------------------------------------------------------------


@rule("U7")
def test_the_key_is_the_kind_and_a_digest_of_the_arguments(app: App) -> None:
    fetch = declared(app, unique=True)
    key = key_of(fetch, "a")
    assert key is not None
    assert key.startswith("fetch:")
    assert len(key) == len("fetch:") + 32
    assert key == key_of(fetch, url="a") == key_of(fetch, "a", 1) == key_of(fetch, "a", note=None)
    assert key != key_of(fetch, "b") != key_of(fetch, "a", 2)
    assert key != key_of(declared(app, "other", unique=True), "a")


@rule("U7")
def test_neither_delay_nor_priority_headers_or_lane_are_in_the_key(app: App) -> None:
    fetch = declared(app, unique=True)
    other = fetch.options(delay=1, priority=9, lane="x", headers={"trace": "1"})
    assert key_of(other, "a") == key_of(fetch, "a")


@rule("U7")
def test_chosen_arguments_alone_are_in_the_key(app: App) -> None:
    by_one = declared(app, "one", unique=Unique(by="url"))
    assert key_of(by_one, "a", 1) == key_of(by_one, "a", 2) != key_of(by_one, "b", 1)
    by_two = declared(app, "two", unique=Unique(by=["depth", "url"]))
    assert key_of(by_two, "a", 2, "x") == key_of(by_two, "a", 2, "y") != key_of(by_two, "a", 3, "x")
    turned = declared(app, "three", unique=Unique(by=lambda depth, url: f"{url}/{depth}"))
    assert key_of(turned, "a", 2, "x") == key_of(turned, "a", 2) != key_of(turned, "a")


@rule("U7")
def test_numbers_and_texts_are_compared_as_they_are_in_the_payload(app: App) -> None:
    @app.job(unique=True)
    def take(value: Any) -> None:
        pass

    values = (1, 1.0, "1", True, None, "Grüße", "Gru\u0308\u00dfe", [1], {"a": 1, "b": 2})
    keys = [key_of(take, value) for value in values]
    assert len(set(keys)) == len(keys)
    assert key_of(take, {"b": 2, "a": 1}) == keys[-1]


@rule("U7")
def test_a_new_parameter_with_a_default_changes_no_key(app: App) -> None:
    @app.job(name="before", unique=True)
    def before(url: str) -> None:
        pass

    with App(store=MemoryStore(ManualClock())) as later:

        @later.job(name="before", unique=True)
        def after(url: str, depth: int = 1) -> None:
            pass

        assert key_of(before, "a") == key_of(after, "a")


def test_a_function_that_returns_none_makes_calls_that_are_not_unique(app: App) -> None:
    fetch = declared(app, unique=Unique(by=lambda url: None if url == "any" else url))
    assert key_of(fetch, "any") is None
    assert key_of(fetch, "a") is not None
    assert fetch.enqueue("any").id != fetch.enqueue("any").id


# What is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Debounce(wait=5, at_most=5), "more than wait"),
        (lambda: Debounce(wait=0, at_most=5), "more than 0"),
        (lambda: Throttle(per=0), "more than 0"),
        (lambda: Unique(until="done"), "'ended' or 'started'"),  # type: ignore[arg-type]
        (lambda: Unique(keep=-1), "not be negative"),
    ],
)
def test_a_rule_that_cannot_hold_is_refused_where_it_is_written(make: Any, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        make()


def test_a_declaration_that_names_nothing_is_refused(app: App) -> None:
    with pytest.raises(Invalid, match="'uri' is not one of its parameters"):
        declared(app, unique=Unique(by="uri"))
    with pytest.raises(Invalid, match="no parameter is named"):
        declared(app, unique=Unique(by=[]))
    with pytest.raises(Invalid, match="'uri' is not one of its parameters"):
        declared(app, unique=Unique(by=lambda uri: uri))
    with pytest.raises(Invalid, match="options"):
        declared(app, unique="crm:42")


def test_a_call_that_does_not_fit_its_rule_is_refused(app: App) -> None:
    fetch = declared(app, unique=Debounce(by="url", wait=1, at_most=2))
    with pytest.raises(Invalid, match="leave out delay"):
        fetch.options(delay=3).enqueue("a")
    with pytest.raises(Invalid, match="lane"):
        fetch.options(lane="x").enqueue("a")
    with pytest.raises(Invalid, match="key itself"):
        fetch.options(unique=True)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="printable"):
        fetch.options(unique="")
