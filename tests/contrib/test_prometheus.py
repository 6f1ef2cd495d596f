"""A worker's metrics in a registry of one's own."""

from __future__ import annotations

import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from leasemill import App, Invalid
from leasemill.contrib.prometheus import export, families
from leasemill.store.memory import MemoryStore
from leasemill.worker.prometheus.catalogue import METRICS, RUN
from leasemill.worker.prometheus.measures import Measures
from leasemill.worker.prometheus.samples import Samples, exposition
from tests.worker.prometheus.scraping import Scraped
from tests.worker.support import drained


async def test_a_registry_has_the_metrics_beside_the_programs_own() -> None:
    registry = CollectorRegistry()
    app = App(store=MemoryStore())
    Counter("orders", "Orders that were taken.", registry=registry).inc()
    export(app, registry)

    @app.job(queue="mail")
    async def send() -> None: ...

    send.enqueue()
    await drained(app)
    found = Scraped(generate_latest(registry).decode())
    assert found("orders_total") == 1
    assert found("leasemill_jobs_total", kind="send", queue="mail", end="succeeded") == 1
    assert found("leasemill_job_run_seconds_count", kind="send") == 1
    (measures,) = app.observers
    assert isinstance(measures, Measures)
    assert {name for name in found.names if name.startswith("leasemill")} == Scraped(exposition(measures.all())).names


def test_buckets_are_the_same_as_those_of_the_endpoint() -> None:
    samples = Samples()
    for value in (0.001, 0.2, 1e9):
        samples.observe(RUN, ("k", "q"), value)
    registry = CollectorRegistry()

    class Fixed:
        def collect(self) -> object:
            return families(samples)

    registry.register(Fixed())  # type: ignore[arg-type]
    theirs, ours = Scraped(generate_latest(registry).decode()), Scraped(exposition(samples))
    assert theirs.names == ours.names
    for name in ours.names:
        expected = list(ours.rows(name))
        assert len(list(theirs.rows(name))) == len(expected)
        assert all(theirs(name, **labels) == value for value, labels in expected), name
    assert len(list(families(samples))) == len(METRICS)


def test_an_app_is_exported_once() -> None:
    app, registry = App(store=MemoryStore()), CollectorRegistry()
    export(app, registry)
    with pytest.raises(Invalid, match="exported already"):
        export(app, CollectorRegistry())
    with pytest.raises(Invalid, match=r"export takes the leasemill\.App"):
        export(registry)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        export(App(store=MemoryStore()), registry)


def test_the_command_line_needs_no_package_for_it() -> None:
    program = (
        "import sys\n"
        "sys.modules['prometheus_client'] = None\n"
        "import leasemill.cli.worker, leasemill.cli.run_worker, leasemill.server.pages\n"
        "try:\n"
        "    import leasemill.contrib.prometheus\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'leasemill[prometheus]'" in done.stdout
