"""The torn write: power fails while a record is written, and of its sectors some reach the disk.

Guard: one checksum over the whole frame (W2); what is not whole never was (W3).
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from leasemill.errors import Broken
from leasemill.kernel.commands import Enqueued
from leasemill.kernel.model import JobState
from leasemill.testing.conformance.steps import acked, claim_one, enqueue, enqueue_one, job_of, spec, state_of
from leasemill.testing.rules import rule
from tests.failures.support import FailingMachine, replace
from tests.lab.faults import SimulatedCrash

SEEDS = 40
PAYLOAD = json.dumps({"text": "x" * 3_000}).encode()
"""Several sectors of the disk."""


def tear(folder: Path, seed: int) -> FailingMachine:
    """One job is answered; power fails when a second one has been written and not synced."""
    failing = FailingMachine(folder, seed)
    enqueue_one(failing, "answered", payload=PAYLOAD)
    failing.machine.crash_at(2, failing.disk)  # the write, and then the sync that does not happen
    with suppress(SimulatedCrash):
        enqueue_one(failing, "torn", payload=PAYLOAD)
    return failing


def outcome(folder: Path, seed: int) -> str:
    failing = tear(folder, seed)
    try:
        failing.lose_power()
        answered, torn = failing.store.job("answered"), failing.store.job("torn")
    except (Broken, msgspec.MsgspecError):
        return "the folder cannot be read"
    finally:
        failing.close()
    if answered is None or answered.spec.payload != PAYLOAD:
        return "an answered job is lost"
    if torn is None:
        return "it never was"
    return "whole" if torn.spec.payload == PAYLOAD else "half of it is taken for a job"


def test_reproduce_without_the_checksum_half_a_record_is_taken_for_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = "    if _crc_more(checksum(start[: FRAME_HEADER.size]), body) != expected:\n        return Cut.DAMAGE\n"
    replace(monkeypatch, "leasemill.store.file.format", check, "")
    seen = Counter(outcome(tmp_path, seed) for seed in range(SEEDS))
    assert seen["half of it is taken for a job"] + seen["the folder cannot be read"] >= 5, seen


@rule("W2", "W3")
def test_prevent_with_it_a_record_is_whole_or_never_was(tmp_path: Path) -> None:
    seen = Counter(outcome(tmp_path, seed) for seed in range(SEEDS))
    assert set(seen) == {"whole", "it never was"}, seen


@rule("E1", "E2")
@pytest.mark.parametrize("seed", range(5))
def test_recover_the_producer_repeats_its_call_and_the_job_is_there_once(tmp_path: Path, seed: int) -> None:
    failing = tear(tmp_path, seed)
    failing.lose_power()
    was_there = failing.store.job("torn") is not None
    outcome = enqueue(failing, spec("torn", payload=PAYLOAD))
    assert isinstance(outcome, Enqueued) is not was_there, "the same id: new, or a duplicate"
    for job_id in ("answered", "torn"):
        lease = claim_one(failing)
        assert (lease.job.id, lease.job.payload) == (job_id, PAYLOAD)
        acked(failing, lease)
    failing.lose_power()
    assert {state_of(failing, one) for one in ("answered", "torn")} == {JobState.SUCCEEDED}
    assert job_of(failing, "torn").attempt == 1
    failing.close()
