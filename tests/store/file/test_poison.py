"""No argument, however wrong, makes a folder unreadable: it is refused, or it can be read again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, Policy
from leasemill.store.file.options import FileOptions
from leasemill.store.file.store import FileStore
from leasemill.testing.rules import rule

ODD: Final[Any] = ["{}", 5, None, 0.0, b"\xff", "\ud800", object(), True, ["x"], 2**70]
OPTIONS: Final = FileOptions(segment_bytes=64 * 1024, does_maintenance=False)

Call = Callable[[FileStore, str, Any], object]

CALLS: Final[dict[str, Call]] = {
    "id": lambda store, _, odd: store.enqueue([JobSpec(odd, "q", "k")]),
    "queue": lambda store, _, odd: store.enqueue([JobSpec("b", odd, "k")]),
    "payload": lambda store, _, odd: store.enqueue([JobSpec("b", "q", "k", odd)]),
    "lane": lambda store, _, odd: store.enqueue([JobSpec("b", "q", "k", lane=odd)]),
    "priority": lambda store, _, odd: store.enqueue([JobSpec("b", "q", "k", priority=odd)]),
    "run_at": lambda store, _, odd: store.enqueue([JobSpec("b", "q", "k", run_at=odd)]),
    "delay": lambda store, _, odd: store.enqueue([JobSpec("b", "q", "k", delay_us=odd)]),
    "policy": lambda store, _, odd: store.enqueue([JobSpec("b", "q", "k", policy=odd)]),
    "on_failure": lambda store, _, odd: store.enqueue([JobSpec("b", "q", "k", policy=Policy(on_failure=odd))]),
    "worker": lambda store, _, odd: store.claim(odd, ["q"], 1),
    "claim's token": lambda store, _, odd: store.run(c.Claim("w", ["q"], 1, [odd], "r")),
    "request id": lambda store, _, odd: store.run(c.Claim("w", ["q"], 1, ["t"], odd)),
    "start's id": lambda store, token, odd: store.start([c.StartReport(odd, token)]),
    "start's token": lambda store, _, odd: store.start([c.StartReport("a", odd)]),
    "start's age": lambda store, token, odd: store.start([c.StartReport("a", token, odd)]),
    "extend's token": lambda store, _, odd: store.extend([c.LeaseRef("a", odd)]),
    "commit's token": lambda store, _, odd: store.commit("a", odd),
    "commit's result": lambda store, token, odd: store.commit("a", token, result=odd),
    "follow-up": lambda store, token, odd: store.commit("a", token, followups=[c.Followup("q", "k", odd)]),
    "ack's result": lambda store, token, odd: store.ack([c.AckReport("a", token, odd)]),
    "ack's token": lambda store, _, odd: store.ack([c.AckReport("a", odd)]),
    "error": lambda store, token, odd: store.nack([c.NackReport("a", token, odd)]),
    "permanent": lambda store, token, odd: store.nack([c.NackReport("a", token, "it broke", is_permanent=odd)]),
    "nack's delay": lambda store, token, odd: store.nack([c.NackReport("a", token, "it broke", delay_us=odd)]),
    "report id": lambda store, token, odd: store.nack(
        [c.NackReport("a", token, "it broke", keep_lease=True, report_id=odd)]
    ),
    "release's error": lambda store, token, odd: store.release([c.ReleaseReport("a", token, None, odd)]),
    "release's delay": lambda store, token, odd: store.release([c.ReleaseReport("a", token, odd)]),
    "acquire's token": lambda store, _, odd: store.acquire([c.AcquireRequest("o", "l", 1, "w", odd)]),
    "acquire's offset": lambda store, _, odd: store.acquire([c.AcquireRequest("o", "l", odd, "w", "t")]),
    "operator": lambda store, _, odd: store.cancel(["a"], by=odd, reason="because"),
    "reason": lambda store, _, odd: store.pause("q", by="ada", reason=odd),
    "paused queue": lambda store, _, odd: store.pause(odd, by="ada", reason="because"),
    "queue's policy": lambda store, _, odd: store.set_policy("q", Policy(max_retries=odd), by="ada", reason="because"),
    "prune": lambda store, _, odd: store.prune(odd, keep=0),
}


@rule("I4")
@pytest.mark.parametrize("name", CALLS)
def test_a_folder_can_be_read_whatever_was_asked_of_it(tmp_path: Path, name: str) -> None:
    for number, odd in enumerate(ODD):
        folder = tmp_path / str(number)
        with FileStore(folder, options=OPTIONS) as store:
            store.enqueue([JobSpec("a", "q", "k")])
            (lease,) = store.claim("w", ["q"], 1)
            with suppress(Invalid, TypeError, AttributeError, UnicodeEncodeError, OverflowError):
                CALLS[name](store, lease.token, odd)
        with FileStore(folder, options=OPTIONS) as store:
            assert store.job("a") is not None
            assert store.enqueue([JobSpec("c", "q", "k")]) == [c.Enqueued("c")]


@rule("I4")
def test_a_payload_that_is_not_bytes_is_refused_with_a_sentence(tmp_path: Path) -> None:
    wrong: Any = "{}"
    with FileStore(tmp_path, options=OPTIONS) as store, pytest.raises(Invalid, match="it must be JSON in bytes"):
        store.enqueue([JobSpec("a", "q", "k", wrong)])
