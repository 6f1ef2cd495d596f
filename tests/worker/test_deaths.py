"""Who is proved dead, who is not, and what becomes of their leases."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from leasemill import App
from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import AbortReason, JobSpec, JobState
from leasemill.store.memory import MemoryStore
from leasemill.store.presence import MemoryPresence, instance_of
from leasemill.store.worker_records import ProcessIdentity, WorkerRecord, encode_record
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from leasemill.worker import deaths as module
from leasemill.worker.deaths import Deaths
from leasemill.worker.identity import Gone, descriptor_of, has_ended, own
from leasemill.worker.metrics import Metrics
from tests.lab.processes import wait_until
from tests.worker.support import drained

DEAD, NEXT = "deadbeef", "newborn1"


def here() -> ProcessIdentity:
    found = own()
    assert found is not None
    return found


def identity_of(pid: int) -> ProcessIdentity:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return replace(here(), pid=pid, started=int(fields[19]))


@contextmanager
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        try:
            yield process
        finally:
            process.kill()


# Proof ---------------------------------------------------------------------------------------------------------------


@rule("L10")
def test_a_process_has_ended_when_it_is_killed_and_not_while_it_runs_or_is_stopped() -> None:
    with sleeping() as process:
        identity = identity_of(process.pid)
        assert not has_ended(identity)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert not has_ended(identity)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(identity), "a zombie runs nothing"
        process.wait(60)
        assert has_ended(identity)


@rule("L10")
def test_another_process_of_the_same_id_proves_that_the_first_has_ended() -> None:
    with sleeping() as process:
        identity = identity_of(process.pid)
        assert has_ended(replace(identity, started=identity.started - 1))


@rule("L10")
@pytest.mark.parametrize(
    "elsewhere",
    [
        pytest.param(lambda one: replace(one, boot="another"), id="another boot or machine"),
        pytest.param(lambda one: replace(one, namespace="pid:[1]"), id="another container"),
    ],
)
def test_a_process_elsewhere_is_never_proved_dead(elsewhere: Callable[[ProcessIdentity], ProcessIdentity]) -> None:
    with sleeping() as process:
        identity = identity_of(process.pid)
    assert has_ended(identity)
    assert not has_ended(elsewhere(identity))
    assert not has_ended(None)


@rule("L10")
def test_without_a_descriptor_nothing_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_allowed(pid: int) -> int:
        raise PermissionError

    with sleeping() as process:
        identity = identity_of(process.pid)
    monkeypatch.setattr(os, "pidfd_open", not_allowed)
    assert not has_ended(identity)


@rule("L10")
def test_a_process_whose_start_is_hidden_is_not_taken_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(pid: int) -> int:
        raise FileNotFoundError

    with sleeping() as process:
        identity = identity_of(process.pid)
        monkeypatch.setattr("leasemill.worker.identity._started", hidden)
        assert descriptor_of(identity) is None
        assert not has_ended(identity)
    with pytest.raises(Gone):
        descriptor_of(identity)


# Leases --------------------------------------------------------------------------------------------------------------


class FlakyStore(MemoryStore):
    failures = 0

    def leases(self, *, worker: str | None = None, limit: int = 100, after: int = 0) -> list[c.LeaseView]:
        if self.failures:
            self.failures -= 1
            raise Unavailable("not now")
        return super().leases(worker=worker, limit=limit, after=after)


@pytest.fixture
def store() -> FlakyStore:
    return FlakyStore(ManualClock())


def claim(store: MemoryStore, instance: str, *job_ids: str) -> None:
    """As worker `w` of that instance."""
    store.enqueue([JobSpec(job_id, "q", "k") for job_id in job_ids])
    tokens = [f"{instance}-{job_id}" for job_id in job_ids]
    assert len(store.run(c.Claim("w", ["q"], len(job_ids), tokens, f"request-{job_ids[0]}"))) == len(job_ids)


def publish(store: MemoryStore, instance: str, process: ProcessIdentity) -> None:
    record = WorkerRecord(
        *("w", "host", process.pid, 0.0, 0.0, 2.0, {"q": 1}, 1, False, [], {}), instance=instance, process=process
    )
    store.presence.publish("w", encode_record(record))


def ended_process() -> ProcessIdentity:
    with sleeping() as process:
        return identity_of(process.pid)


def state_of(store: MemoryStore, job_id: str) -> JobState:
    job = store.job(job_id)
    assert job is not None
    return job.state


def test_a_round_that_a_stopping_worker_did_not_wait_for_ends_before_the_next_begins(
    store: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(store, DEAD, "a")
    publish(store, DEAD, ended_process())
    asked, second, may_answer = threading.Event(), threading.Event(), threading.Event()
    leases = store.leases

    def slow(**options: Any) -> list[c.LeaseView]:
        (second if asked.is_set() else asked).set()
        assert may_answer.wait(30)
        return leases(**options)

    monkeypatch.setattr(store, "leases", slow)
    metrics = Metrics()
    deaths = Deaths("me", "my-own-1", store, metrics, lambda error: None)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(deaths.round)
        assert asked.wait(30)
        next_one = threads.submit(deaths.round)
        assert not second.wait(0.2)
        may_answer.set()
        first.result(30)
        next_one.result(30)
    assert (metrics.deaths, metrics.dead_workers) == (1, 1)


@rule("L10")
def test_the_leases_of_a_dead_worker_end_and_those_of_its_successor_do_not(store: FlakyStore) -> None:
    claim(store, DEAD, "a", "b")
    claim(store, NEXT, "c")
    publish(store, DEAD, ended_process())
    metrics = Metrics()
    Deaths("me", "my-own-1", store, metrics, lambda error: None).round()
    assert [state_of(store, job_id) for job_id in "abc"] == [JobState.READY, JobState.READY, JobState.LEASED]
    assert (metrics.deaths, metrics.dead_workers) == (2, 1)
    assert store.presence.records() == []
    job = store.job("a")
    assert job is not None
    (execution,) = job.executions
    assert execution.reason is AbortReason.DIED
    assert execution.error is not None
    assert execution.error.startswith("worker w ended: its process ")
    assert execution.error.endswith(" on host host is gone, seen by worker me")


@pytest.mark.parametrize(
    ("states", "sentence"),
    [
        ([], "it held no lease any more"),
        ([JobState.READY], "1 job can run again"),
        (
            [JobState.SUCCEEDED, JobState.READY, JobState.READY],
            "2 jobs can run again, 1 job had committed and succeeded",
        ),
        ([JobState.DEAD], "1 job quarantined: job-0 (see `leasemill jobs explain`)"),
        (
            [JobState.READY, JobState.DEAD],
            "1 job can run again, 1 job quarantined: job-1 (see `leasemill jobs explain`)",
        ),
    ],
)
def test_the_log_says_what_became_of_the_jobs_of_a_dead_worker(states: list[JobState], sentence: str) -> None:
    assert module.what_became_of([c.Died(f"job-{number}", state) for number, state in enumerate(states)]) == sentence


@rule("L10")
def test_the_leases_of_a_worker_that_is_stopped_stay(store: FlakyStore) -> None:
    claim(store, DEAD, "a")
    with sleeping() as process:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        publish(store, DEAD, identity_of(process.pid))
        deaths = Deaths("me", "my-own-1", store, Metrics(), lambda error: None)
        deaths.round()
        assert state_of(store, "a") is JobState.LEASED
        assert len(store.presence.records()) == 1
        deaths.close()


@rule("L10")
def test_a_worker_that_is_killed_after_its_record_became_stale_is_proved_dead(store: FlakyStore) -> None:
    """One that is stopped publishes nothing, and a reaper removes its record; its leases last longer than that."""
    claim(store, DEAD, "a")
    deaths = Deaths("me", "my-own-1", store, Metrics(), lambda error: None)
    with sleeping() as process:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        publish(store, DEAD, identity_of(process.pid))
        deaths.round()
        assert store.presence.remove("w")
        deaths.start()
        try:
            looked_at = deaths._look_at
            wait_until(lambda: deaths._look_at > looked_at, "another look")
            assert state_of(store, "a") is JobState.LEASED
            process.kill()
            wait_until(lambda: state_of(store, "a") is JobState.READY, "the death to be recorded")
        finally:
            deaths.stop()


def test_a_successor_that_publishes_while_a_death_is_recorded_keeps_its_record(
    store: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store, DEAD, here())
    remove = MemoryPresence.remove

    def replaced_before(presence: MemoryPresence, *which: str) -> bool:
        publish(store, NEXT, here())
        return remove(presence, *which)

    deaths = Deaths("me", "my-own-1", store, Metrics(), lambda error: None)
    deaths._look_at = math.inf
    deaths.ended("w", DEAD, "exit status 137, seen by its supervisor")
    with monkeypatch.context() as patched:
        patched.setattr(MemoryPresence, "remove", replaced_before)
        deaths.round()
    assert [instance_of(record.content) for record in store.presence.records()] == [NEXT]


def test_a_worker_that_has_withdrawn_is_no_longer_watched(store: FlakyStore) -> None:
    claim(store, NEXT, "a")
    with sleeping() as process:
        publish(store, DEAD, identity_of(process.pid))
        deaths = Deaths("me", "my-own-1", store, Metrics(), lambda error: None)
        deaths.round()
        assert list(deaths._watched) == [DEAD]
        assert store.presence.remove("w")
        deaths.look()
        assert not deaths._watched


def test_a_proof_waits_for_a_store_that_is_unavailable(store: FlakyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "backoff_s", lambda failures, jitter: 0.0)
    claim(store, DEAD, "a")
    store.failures = 2
    deaths = Deaths("me", "my-own-1", store, Metrics(), lambda error: None)
    deaths.ended("w", DEAD, "exit status 137, seen by its supervisor")
    deaths.round()
    deaths.round()
    assert state_of(store, "a") is JobState.LEASED
    deaths.round()
    assert state_of(store, "a") is JobState.READY


def test_a_claim_that_arrives_after_the_death_is_found_a_moment_later(
    store: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    deaths = Deaths("me", "my-own-1", store, Metrics(), lambda error: None)
    real = deaths._end
    late = iter(["a"])

    def then_claim(ended: module.Ended, was_stopping: bool) -> None:
        real(ended, was_stopping)
        for job_id in late:
            claim(store, DEAD, job_id)

    monkeypatch.setattr(deaths, "_end", then_claim)
    deaths.ended("w", DEAD, "exit status 137, seen by its supervisor")
    deaths.round()
    assert state_of(store, "a") is JobState.READY


@rule("L10")
async def test_a_worker_that_drains_runs_the_jobs_of_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """They can be claimed before its first claim, however late its thread is."""
    run = Deaths._run

    def idle(deaths: Deaths) -> None:
        while not deaths._is_stopping:
            deaths._wait()
        run(deaths)

    monkeypatch.setattr(Deaths, "_run", idle)
    store = MemoryStore()
    app = App("memory:")

    @app.job(queue="q")
    async def build() -> str:
        return "built"

    with app.bound_to(store):
        handle = build.enqueue()
        assert len(store.run(c.Claim("w", ["q"], 1, [f"{DEAD}-token"], "request"))) == 1
        publish(store, DEAD, ended_process())
        await drained(app)
        assert handle.result(timeout=0) == "built"
