"""How far a reader has to go to follow one verb: how many functions are called, and how often the file changes.

Bars for the path of one call, so that it does not grow a layer at a time. Names and files may change freely.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import pytest

import leasemill
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.store.base import Store
from leasemill.store.factory import open_store

PACKAGE: Final = str(Path(leasemill.__file__).parent)
VERBS: Final = ("enqueue", "claim", "start", "extend", "commit", "ack", "refused ack")
MOST_FUNCTIONS: Final = 60
MOST_SWITCHES: Final = 30


class Hops(NamedTuple):
    functions: int
    """Different ones that were called."""
    switches: int
    """How often the next function was in another file than the one before."""


def hops(call: Callable[[], object]) -> Hops:
    """Of this thread, in the package alone.

    A comprehension or a lambda is no other place to look, and a generator that is resumed is returned to, not called.
    """
    called: list[tuple[str, str]] = []
    begun: set[FrameType] = set()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and frame not in begun:
            begun.add(frame)
            if not code.co_name.startswith("<"):
                called.append((code.co_filename, code.co_qualname))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    switches = sum(one[0] != other[0] for one, other in pairwise(called))
    return Hops(len(set(called)), switches)


class OneJob:
    """A job from its enqueue to its end, a verb at a time. One before it has warmed the store up."""

    def __init__(self, store: Store, lane: str | None) -> None:
        self.store = store
        self._lane = lane
        self._token = ""
        for verb in VERBS:
            self.run(verb, "warm")

    def run(self, verb: str, job_id: str = "job") -> None:
        getattr(self, verb.replace(" ", "_"))(job_id)

    def enqueue(self, job_id: str) -> None:
        self.store.enqueue([JobSpec(job_id, "q", "k", lane=self._lane)])

    def claim(self, _job_id: str) -> None:
        (lease,) = self.store.claim("w", ["q"], 1)
        self._token = lease.token

    def start(self, job_id: str) -> None:
        self.store.start([c.StartReport(job_id, self._token)])

    def extend(self, job_id: str) -> None:
        self.store.extend([c.LeaseRef(job_id, self._token)])

    def commit(self, job_id: str) -> None:
        self.store.commit(job_id, self._token, followups=[c.Followup("later", "k")])

    def ack(self, job_id: str) -> None:
        self.store.ack([c.AckReport(job_id, self._token)])

    def refused_ack(self, job_id: str) -> None:
        self.store.ack([c.AckReport(job_id, "another")])


@pytest.mark.parametrize("lane", [None, "lane"])
def test_a_verb_on_a_folder_takes_few_functions_and_changes_of_file(tmp_path: Path, lane: str | None) -> None:
    with open_store(f"file:{tmp_path / 'jobs'}") as store:
        job = OneJob(store, lane)
        found = {verb: hops(partial(job.run, verb)) for verb in VERBS}
    for verb, one in found.items():
        print(f"{verb}: {one.functions} functions, {one.switches} switches")  # noqa: T201
    assert {verb: one for verb, one in found.items() if one.functions > MOST_FUNCTIONS} == {}
    assert {verb: one for verb, one in found.items() if one.switches > MOST_SWITCHES} == {}
