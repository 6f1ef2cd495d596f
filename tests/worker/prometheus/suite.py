"""A worker's metrics while it works; run on every store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from leasemill import App, Context, Release, Retry
from leasemill.store.worker_records import WorkerRecord, encode_record, records
from leasemill.worker.prometheus import queues
from leasemill.worker.prometheus.catalogue import QUEUE_JOBS, QUEUES_ELECTED
from leasemill.worker.prometheus.endpoint import Endpoint, parsed_address
from leasemill.worker.prometheus.measures import Measures
from tests.worker.prometheus.scraping import Scraped, scrape
from tests.worker.support import working


@asynccontextmanager
async def exported(app: App) -> AsyncIterator[Endpoint]:
    """An app whose next worker is measured, and where that can be read."""
    measures = Measures(app)
    app.observers.append(measures)
    endpoint = Endpoint(parsed_address("0"), measures.all)
    endpoint.start()
    try:
        yield endpoint
    finally:
        endpoint.close()
        app.observers.remove(measures)


async def read_until(endpoint: Endpoint, is_so: Callable[[Scraped], bool]) -> Scraped:
    async with asyncio.timeout(30):
        while not is_so(found := await asyncio.to_thread(scrape, endpoint.address.url)):
            pass
    return found


class PrometheusSuite:
    """A store's tests give the `app`."""

    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Queues are read often, so that tests need not wait for it."""
        for name in ("ELECTED_LOOKS_S", "OTHERS_LOOK_S", "UNKNOWN_LOOKS_S", "READ_S"):
            monkeypatch.setattr(queues, name, 0.05)

    async def test_what_a_worker_does_can_be_read_while_it_works(self, app: App) -> None:
        gate = asyncio.Event()

        @app.job(queue="mail", retry=Retry(max=1, base=0, cap=0))
        async def fails() -> None:
            raise ValueError("again")

        @app.job(queue="mail")
        async def waits() -> None:
            await gate.wait()

        @app.job(queue="rows")
        def quick(ctx: Context, number: int) -> None:
            with ctx.commit():
                pass

        @app.job(queue="rows")
        async def gives_back(ctx: Context) -> None:
            if ctx.attempt == 1:
                raise Release(0)
            async with ctx.commit():
                pass

        fails.enqueue()
        waits.enqueue()
        gives_back.enqueue()
        quick.enqueue_many(quick.call(number) for number in range(5))
        quick.options(delay=3600).enqueue(6)
        async with exported(app) as endpoint, working(app, worker_id="mill"):
            found = await read_until(
                endpoint,
                lambda found: (
                    found("leasemill_jobs_total") == 9
                    and found("leasemill_queue_jobs", queue="rows", state="succeeded") == 6
                    and found("leasemill_queue_jobs", queue="mail", state="failed") == 1
                ),
            )
            assert found("leasemill_jobs_total", kind="fails", queue="mail", end="retried") == 1
            assert found("leasemill_jobs_total", kind="fails", queue="mail", end="failed") == 1
            assert found("leasemill_jobs_total", kind="quick", queue="rows", end="succeeded") == 5
            assert found("leasemill_jobs_total", kind="gives_back", end="released") == 1
            assert found("leasemill_jobs_total", kind="gives_back", end="succeeded") == 1
            assert found.has("leasemill_jobs_total", kind="waits", queue="mail", end="failed"), (
                "from 0, before the first"
            )
            assert found("leasemill_job_wait_seconds_count", kind="quick") == 5
            assert found("leasemill_job_wait_seconds_count", kind="fails") == 1, "of first attempts"
            assert found("leasemill_job_run_seconds_count", kind="fails") == 2
            assert found("leasemill_job_run_seconds_count", kind="waits") == 0, "it runs"
            assert found("leasemill_leases_held") == 1
            assert (found("leasemill_slots", state="running"), found("leasemill_slots", state="free")) == (1, 9)
            assert found("leasemill_queue_jobs", queue="mail", state="leased") == 1
            assert found("leasemill_queue_jobs", queue="rows", state="ready") == 1
            assert found("leasemill_queue_oldest_due_seconds", queue="rows") == 0, "it is due in an hour"
            assert found("leasemill_queues_elected") == 1
            assert [one.is_exporting for one, _ in records(app.store.presence)] == [True]
            assert found("leasemill_claims_total", result="granted") >= 1
            assert found("leasemill_reaper_runs_total") >= 1
            assert found("leasemill_store_call_seconds_count", verb="commit") == 6
            for verb in ("claim", "ack", "nack", "release", "expire"):
                assert found("leasemill_store_call_seconds_count", verb=verb) >= 1, verb
            gate.set()
            await read_until(endpoint, lambda found: found("leasemill_jobs_total", kind="waits", end="succeeded") == 1)

    async def test_the_worker_that_started_first_counts_the_queues_and_another_takes_over_when_it_dies(
        self, app: App
    ) -> None:
        @app.job(queue="mail")
        async def send() -> None: ...

        send.options(delay=3600).enqueue()
        store = app.store

        def publish(worker: str, started_at: float, *, is_exporting: bool = True) -> None:
            store.presence.publish(worker, encode_record(record(worker, started_at, is_exporting=is_exporting)))

        first, second = (queues.QueueReader(worker, store) for worker in ("z-first", "a-second"))
        publish("without", 0.0, is_exporting=False)
        publish("a-second", 2.0)
        publish("z-first", 1.0)
        second.round()
        assert not is_elected(second), "its name is smaller, and it started later"
        first.round()
        assert is_elected(first)
        ends_at = time.monotonic() + 30
        while not is_elected(second):  # the first one is silent from now on
            assert time.monotonic() < ends_at
            publish("a-second", 2.0)
            was_elected = is_elected(first)
            second.round()
            assert not (was_elected and is_elected(second) and is_elected(first)), "never both"
        assert not is_elected(first)


def record(worker: str, started_at: float, *, is_exporting: bool = True, is_stopping: bool = False) -> WorkerRecord:
    """Of a worker that is taken for dead after a second."""
    return WorkerRecord(
        *(worker, "host", 1, started_at, started_at),
        interval_s=0.001,
        queues={},
        concurrency=1,
        is_stopping=is_stopping,
        running=[],
        counters={},
        is_exporting=is_exporting,
    )


def is_elected(reader: queues.QueueReader) -> bool:
    samples, left_s = reader.samples()
    exported = samples.values[QUEUES_ELECTED.name][()] == 1
    assert exported == (samples.values.get(QUEUE_JOBS.name, {}).get(("mail", "ready")) == 1)
    assert exported == (left_s > 0)
    return exported
