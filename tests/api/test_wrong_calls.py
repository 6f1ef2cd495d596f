"""Mistakes that a type checker would find, made without one: each is refused where it is made, in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from leasemill import App, RetryAfter, chain
from leasemill.errors import Invalid

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
