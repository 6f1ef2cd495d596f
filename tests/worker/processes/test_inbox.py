"""What a handler's process makes of what its worker sends, whenever that arrives."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.store.memory import MemoryStore
from leasemill.worker.processes.child import Inbox
from leasemill.worker.processes.interruption import HandlersChannel, Interruption
from leasemill.worker.processes.messages import BeginRun, LeaseHeld
from leasemill.worker.run import Run


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    near, far = socket.socketpair()
    with near, far:
        yield Inbox(HandlersChannel(near), Interruption())


@pytest.fixture
def lease() -> c.Lease:
    with MemoryStore() as store:
        store.enqueue([JobSpec("job", "q", "k")])
        return store.claim("w", ["q"], 1)[0]


@pytest.fixture(autouse=True)
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    groups: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _: groups.append(group))
    return groups


def test_a_process_ends_with_the_lease_of_its_run(inbox: Inbox, lease: c.Lease, killed: list[int]) -> None:
    now = time.monotonic()
    inbox._handle(BeginRun(lease, 0.0, now + 10, now + 20))
    assert inbox._patience_ms() is not None
    inbox._handle(LeaseHeld(now - 10, now - 1))
    inbox._patience_ms()
    assert killed == [0]


def test_an_extension_that_comes_after_the_run_ends_no_process_that_waits_for_the_next(
    inbox: Inbox, lease: c.Lease, killed: list[int]
) -> None:
    now = time.monotonic()
    inbox._handle(BeginRun(lease, 0.0, now + 10, now + 20))
    inbox.taken(Run(lease, None, now))
    inbox.ended()
    inbox._handle(LeaseHeld(now - 10, now - 1))
    assert inbox._patience_ms() is None, "it waits for the worker, however long that takes"
    assert killed == []
