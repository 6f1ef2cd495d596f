"""`leasemill worker --metrics`: one endpoint, whatever becomes of the processes behind it."""

from __future__ import annotations

import socket
from collections.abc import Callable

from tests.lab.processes import WorkerProcess, wait_until
from tests.process import jobs
from tests.process.support import Scene
from tests.process.test_supervisor import await_healthy, children, messages
from tests.worker.prometheus.scraping import Scraped, scrape

BEFORE, AFTER = "metrics at ", "/metrics"


class Watched:
    """The endpoint of a worker; what rises must never fall."""

    def __init__(self, worker: WorkerProcess) -> None:
        wait_until(lambda: messages(worker, BEFORE), "the endpoint to be there")
        (line,) = messages(worker, BEFORE)
        self.url = line["message"].removeprefix(BEFORE)
        self.latest = Scraped("")

    def read(self) -> Scraped:
        before, self.latest = self.latest, scrape(self.url)
        for name in before.names:
            if name.endswith(("_total", "_count", "_bucket")):
                for value, labels in before.rows(name):
                    assert self.latest(name, **labels) >= value, f"{name} {labels} fell"
        return self.latest

    def until(self, is_so: Callable[[Scraped], bool], what: str) -> Scraped:
        wait_until(lambda: is_so(self.read()), what, every_s=0.05)
        return self.latest


def succeeded(found: Scraped) -> float:
    return found("leasemill_jobs_total", kind="bystander", end="succeeded")


def test_a_killed_process_takes_its_gauges_with_it_and_leaves_what_it_counted(scene: Scene) -> None:
    handles = [jobs.bystander.enqueue() for _ in range(20)]
    jobs.waits.options(delay=3600).enqueue("never")
    mill = scene.worker("mill", "--processes", "2", "--metrics", "127.0.0.1:0")
    await_healthy(scene, mill)
    watched = Watched(mill)
    found = watched.until(
        lambda found: (
            succeeded(found) == 20
            and found("leasemill_slots") == 20
            and found("leasemill_queue_jobs", queue="bystanders", state="succeeded") == 20
        ),
        "both to have reported",
    )
    assert found("leasemill_processes") == 2
    assert found("leasemill_queues_elected") == 1, "of two processes one counts the queues"
    assert found("leasemill_queue_jobs", queue="hit", state="ready") == 1
    assert found("leasemill_process_deaths_total") == 0

    children(mill)["mill.1"].kill()

    watched.until(
        lambda found: found("leasemill_processes") == 1 and found("leasemill_slots") == 10, "its gauges to be gone"
    )
    assert watched.latest("leasemill_process_deaths_total") == 1
    watched.until(lambda found: found("leasemill_slots") == 20, "the next one to be there")
    handles += [jobs.bystander.enqueue() for _ in range(20)]
    watched.until(
        lambda found: (
            succeeded(found) == 40
            and found("leasemill_queues_elected") == 1
            and found("leasemill_queue_jobs", queue="bystanders", state="succeeded") == 40
        ),
        "the rest, counted on top, and another one elected",
    )
    for handle in handles:
        scene.check_applied_once(handle)
    assert mill.end() == 0


def test_a_process_that_is_replaced_between_jobs_leaves_all_that_it_counted(scene: Scene) -> None:
    mill = scene.worker("mill", "--max-jobs", "3", "--concurrency", "1", "--metrics", "127.0.0.1:0")
    watched = Watched(mill)
    for _ in range(7):
        jobs.bystander.enqueue()
    found = watched.until(lambda found: succeeded(found) == 7, "all to be counted")
    assert found("leasemill_process_deaths_total") == 0
    assert len(messages(mill, "this process is replaced: it has run 3 jobs")) >= 2
    assert mill.end() == 0


def test_one_process_serves_its_metrics_itself(scene: Scene) -> None:
    mill = scene.worker("mill", "--metrics", "127.0.0.1:0", "--executor", "process")
    watched = Watched(mill)
    jobs.bystander.enqueue()
    found = watched.until(lambda found: succeeded(found) == 1, "the job to be counted")
    assert found("leasemill_slots") == 10
    assert not found.has("leasemill_processes")
    assert found("leasemill_job_run_seconds_count", kind="bystander", queue="bystanders") == 1
    assert mill.end() == 0


def test_an_address_in_use_is_a_wrong_setting(scene: Scene) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        for number, options in enumerate([(), ("--processes", "2")]):
            mill = scene.worker(f"mill-{number}", "--metrics", address, *options)
            assert mill.wait() == 2, options
            assert f"Error: --metrics {address}: cannot listen there: Address already in use" in mill.log()
            assert "worker started" not in mill.log()
