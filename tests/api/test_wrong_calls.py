"""Mistakes that a type checker would find, made without one: each is refused where it is made, in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from leasemill import App, RetryAfter, chain
from leasemill.errors import Invalid, Unavailable

declaring = App("memory:")


@declaring.job(name="greet")
def declared(name: str) -> None: ...


app: Any = declaring
greet: Any = declared


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: App(Path("jobs")), "the URL of the store is .*; write text, for example App"),  # type: ignore[arg-type]
        (lambda: App("memory:", queue=7), "queue is 7; it must be text"),  # type: ignore[arg-type]
        (lambda: app.job(queue=7), "queue is 7; it must be text"),
        (lambda: app.job(queue=["a"]), r"queue is \['a'\]; it must be text"),
        (lambda: greet.enqueue(nmae="ann"), r"unexpected keyword argument 'nmae'; it takes \(name\)"),
        (
            lambda: greet.enqueue("ann", delay=5),
            r"argument 'delay'; it takes \(name\); to set it for one job write declared.options\(delay=5\).enqueue",
        ),
        (lambda: greet.enqueue("ann", countdown=5), r"write declared.options\(delay=5\).enqueue"),
        (lambda: greet.enqueue({1: "a"}), "argument 'name'"),
        (lambda: greet.options(job_id=UUID(int=7)), "job_id is UUID.*; it must be text"),
        (lambda: greet.options(lane=7), "lane is 7; it must be text"),
        (lambda: greet.options(run_at="2030-01-01"), "run_at is '2030-01-01'; write a datetime with a time zone"),
        (lambda: greet.options(delay=1e308), "delay is far too long; it must be at most"),
        (lambda: greet.options(delay=10**400), "delay is far too long; it must be at most"),
        (lambda: greet.options(delay=-1e308), "delay is -1e.15 s; it must not be negative"),
        (lambda: RetryAfter(1e305), r"RetryAfter\(delay\) is far too long"),
        (lambda: chain(greet), r"<job 'greet' in queue 'default'> is not a call; write job.call\(...\)"),
        (lambda: app.enqueue_many([greet]), "is not a call"),
        (lambda: app.enqueue_stream(["ann"]), "'ann' is not a call"),
        (lambda: app.group().enqueue(greet), "is not a call"),
        (lambda: app.group(then=greet), "is not a call"),
        (lambda: app.group([greet.call("ann")]), "the id of a group is .*with app.group.. as group"),
    ],
)
def test_a_wrong_call_is_refused_in_a_sentence(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        call()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("delay", "a job has no attribute 'delay'; write greet.enqueue"),
        ("apply_async", r"write greet.options\(delay=5\).enqueue\(...\)"),
        ("nothing", "a job has no attribute 'nothing'$"),
    ],
)
def test_the_names_of_other_libraries_are_refused_with_ours(name: str, sentence: str) -> None:
    with pytest.raises(AttributeError, match=sentence):
        getattr(greet, name)


def test_a_dict_whose_keys_are_not_text_is_named_in_plain_words() -> None:
    @declaring.job
    def anything(given: Any) -> Any: ...

    sentence = r"argument 'given' at \['a'\]: a dict has a non-string key \(1\); JSON object keys must be strings"
    with pytest.raises(Invalid, match=sentence):
        anything.enqueue({"a": {1: 2}})
    with pytest.raises(
        Invalid, match=r"anything returned a value that is not JSON-serializable: a dict has a non-string"
    ):
        anything.arguments.encode_result({1: 2})


@pytest.mark.parametrize("options", [{}, {"job_id": "greet-7"}])
def test_a_server_that_is_down_at_first_use_has_got_nothing_and_the_error_says_so(options: dict[str, Any]) -> None:
    down = App("postgresql://nobody@127.0.0.1:1/none?connect_timeout=1")

    @down.job
    def greets(name: str) -> None: ...

    with pytest.raises(Unavailable) as raised:
        greets.options(**options).enqueue("ann")
    assert raised.value.__notes__ == ["the store could not be opened, so nothing was sent to it: repeat the same call"]
