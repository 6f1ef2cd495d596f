"""A slice of `make chaos STORE=postgresql`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leasemill.api.job import JobType
from leasemill.errors import Unavailable
from leasemill.kernel.model import JobState
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from leasemill.store.postgres.driver import connections as pool
from leasemill.testing.rules import rule
from leasemill.worker.process_ends import EXIT_OVERRUN
from tests.fire import bank, cuts, faults
from tests.fire.chaos import settled_seed
from tests.fire.faults import Ground
from tests.fire.load import Verdict
from tests.fire.proxy import Proxy
from tests.lab.processes import IMPORT_PATH, WorkerProcess, wait_until

Deposit = JobType[[str, int, int], None]
SCENES = (cuts.enqueue, cuts.claim, cuts.ack, cuts.ack_in_lane, cuts.nack, cuts.user_commit, cuts.user_enqueue)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    seed = settled_seed(None)
    print(f"seed {seed}; again: SEED={seed} make test PYTEST_ARGS='tests/fire'")  # noqa: T201  (shown on failure)
    folder: Path = tmp_path_factory.mktemp("fire")
    folder.chmod(0o755)
    ground = Ground(folder, seed)
    with ground.server:
        yield ground


def check(verdict: Verdict) -> None:
    assert verdict.wrong == []
    assert (verdict.lost, verdict.doubled) == (0, 0)
    assert verdict.runs > 0


@rule("L3", "X4", "X5")
@pytest.mark.timeout(120)
def test_a_killed_workers_jobs_take_effect_once(ground: Ground) -> None:
    check(faults.workers_killed(ground, 3))


@rule("X4", "X5")
@pytest.mark.timeout(120)
def test_workers_outlive_a_server_that_is_stopped_at_once(ground: Ground) -> None:
    check(faults.server_stopped(ground, "immediate", 2))


@rule("X4", "X5")
@pytest.mark.timeout(120)
def test_workers_outlive_the_end_of_every_session(ground: Ground) -> None:
    check(faults.backends_terminated(ground, 3))


@rule("E2", "L6", "X5")
@pytest.mark.timeout(120)
def test_a_call_whose_answer_was_cut_off_is_the_same_call_when_repeated(ground: Ground) -> None:
    check(cuts.connections_cut_in_turn(ground, SCENES))


# A server that does not answer -------------------------------------------------------------------------------------


@contextmanager
def work_through(proxy: Proxy, ground: Ground, folder: Path) -> Iterator[tuple[WorkerProcess, Deposit]]:
    """A worker that reaches the bank through a proxy and has done a job, and a way past the proxy to enqueue more."""
    direct = ground.url()
    with ground.connected() as connection:
        bank.open_accounts(connection, ["ann"])
    worker = WorkerProcess(
        "tests.fire.bank:app",
        url=direct.replace(str(ground.server.port), str(proxy.port)),
        log=folder / "worker.log",
        options=["--shutdown-timeout", "1.5"],
        environment={"PYTHONPATH": IMPORT_PATH},
    )
    with open_store(direct) as store, bank.app.bound_to(store), worker:
        first = bank.deposit.enqueue("ann", 1, 100)
        wait_until(lambda: first.status() is JobState.SUCCEEDED, "the first job", 30)
        yield worker, bank.deposit


@pytest.mark.timeout(120)
def test_a_worker_exits_when_it_is_asked_to_while_its_server_is_silent(ground: Ground, tmp_path: Path) -> None:
    with Proxy(ground.server.port) as proxy, work_through(proxy, ground, tmp_path) as (worker, _):
        proxy.fall_silent()
        time.sleep(0.5)  # so that it waits for an answer
        assert worker.end(limit_s=20) in {0, EXIT_OVERRUN}, (
            "it ends by itself, whether or not it could remove its record"
        )


@pytest.mark.timeout(120)
def test_a_worker_goes_on_when_a_silent_server_answers_again(ground: Ground, tmp_path: Path) -> None:
    with Proxy(ground.server.port) as proxy, work_through(proxy, ground, tmp_path) as (_, deposit):
        proxy.fall_silent()
        second = deposit.enqueue("ann", 2, 100)
        time.sleep(3)  # longer than its lease
        assert second.status() is not JobState.SUCCEEDED
        proxy.speak()
        wait_until(lambda: second.status() is JobState.SUCCEEDED, "the job to end", 30)


@pytest.mark.timeout(120)
def test_a_server_that_forgot_the_connection_is_given_up_and_reached_by_another(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "SILENCE_S", 0.5)
    with Proxy(ground.server.port) as proxy:
        url = ground.url().replace(str(ground.server.port), str(proxy.port))
        with open_store(f"{url}&statement_timeout_s=0.5&pool_size=1&retry_for_s=0") as store:
            assert store.queues() == []
            proxy.fall_silent()
            with pytest.raises(Unavailable, match="did not respond"):
                store.queues()
            proxy.speak(forgets=True)
            wait_until(lambda: _answers(store), "an answer on another connection", 30)


@pytest.mark.timeout(120)
def test_closing_a_store_does_not_wait_for_a_silent_server(ground: Ground) -> None:
    with Proxy(ground.server.port) as proxy:
        store = open_store(ground.url().replace(str(ground.server.port), str(proxy.port)))
        proxy.fall_silent()
        asked = threading.Thread(target=_answers, args=(store,))
        asked.start()
        closing = threading.Thread(target=store.close)
        closing.start()
        closing.join(20)
        asked.join(20)
        assert not closing.is_alive()
        assert not asked.is_alive(), "a call under way ends with its store"


def _answers(store: Store) -> bool:
    try:
        return store.queues() == []
    except Unavailable:
        return False
