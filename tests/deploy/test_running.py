"""What the files of `deploy/` run is run: the steps of the image in an environment of its own, the migration, two
workers on PostgreSQL, the probes and the health check.

Not run, for there is no container engine in a test: FROM (this interpreter stands in), the RUN that adds a user, USER,
VOLUME, the compose file and the manifest as a whole. The package's dependencies are those of this environment.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from leasemill import JobState
from leasemill.store.factory import open_store
from leasemill.testing.postgres import PostgresServer
from tests.deploy.files import (
    compose,
    health_check,
    instruction,
    instructions,
    pod,
    queries,
    values_asked_for,
    worker_container,
)
from tests.docs.pages import ROOT
from tests.lab.processes import wait_until
from tests.worker.prometheus.scraping import Scraped, scrape

TIMEOUT_S = 60
NOWHERE = "postgresql://nobody@127.0.0.1:1/nowhere?connect_timeout=2"


class Image:
    """Where the steps of the Dockerfile were carried out."""

    def __init__(self, folder: Path) -> None:
        self.workdir = folder / "app"
        self.environment = folder / "environment"
        self.logs = folder

    def variables(self, **variables: str) -> dict[str, str]:
        return {"PATH": f"{self.environment / 'bin'}:{os.defpath}", "HOME": str(self.workdir), **variables}

    def shell(self, text: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """As Docker and Kubernetes run a command in the shell form."""
        return subprocess.run(
            ["/bin/sh", "-c", text],
            cwd=self.workdir,
            env=self.variables(**variables),
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    folder = tmp_path_factory.mktemp("image")
    image, context = Image(folder), folder / "context"
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(context / "dist"), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=TIMEOUT_S)
    shutil.copytree(ROOT / "deploy", context / "deploy")
    venv.create(image.environment, with_pip=False)
    site = image.environment / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    pip = image.environment / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec {sys.executable} -m pip --python {image.environment}/bin/python "$@"\n')
    pip.chmod(0o755)
    image.workdir.mkdir()
    *sources, target = instruction("COPY").split()
    assert target == "./"
    for source in sources:
        found = list(context.glob(source))
        assert found, f"COPY {source} copies nothing"
        for path in found:
            shutil.copy(path, image.workdir)
    (install,) = [one.text for one in instructions() if one.name == "RUN" and "pip install" in one.text]
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_IGNORE_INSTALLED": "1"}
    done = image.shell(install, **offline)
    assert done.returncode == 0, done.stderr
    return image


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with PostgresServer(settings={"fsync": "off"}) as server:
        yield server.url(tcp=True)


class Replica:
    """The image's CMD with the name of a container, on a port of its own."""

    def __init__(self, image: Image, url: str, name: str, *options: str) -> None:
        self.name = name
        self.log = image.logs / f"{name}.log"
        command = instruction("CMD").replace("0.0.0.0:9464", "127.0.0.1:0")
        assert command != instruction("CMD")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", f"{command} {' '.join(options)}"],
                cwd=image.workdir,
                env=image.variables(LEASEMILL_URL=url, HOSTNAME=name),
                stdout=log,
                stderr=log,
            )

    def metrics(self) -> Scraped:
        found = re.search(r"http://[\d.:]+/metrics", self.log.read_text())
        assert found is not None, self.log.read_text()
        return scrape(found[0])

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(TIMEOUT_S)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def replicas(image: Image, url: str) -> Iterator[list[Replica]]:
    """As compose starts them: the migration, then as many workers as it says."""
    migrated = image.shell(" ".join(compose()["services"]["migrate"]["command"]), LEASEMILL_URL=url)
    assert migrated.returncode == 0, migrated.stderr
    count = compose()["services"]["worker"]["deploy"]["replicas"]
    found = [Replica(image, url, f"container-{number}") for number in range(count)]
    try:
        for one in found:
            await_healthy(image, url, one)
        yield found
    finally:
        for one in found:
            one.process.kill()
            one.process.wait()


def await_healthy(image: Image, url: str, replica: Replica) -> None:
    def is_healthy() -> bool:
        assert replica.process.poll() is None, replica.log.read_text()
        return image.shell(health_check(), LEASEMILL_URL=url, HOSTNAME=replica.name).returncode == 0

    wait_until(is_healthy, f"{replica.name} to be healthy", every_s=0.2)


def probe(image: Image, name: str, variables: Mapping[str, str]) -> int:
    shell, option, text = worker_container()[name]["exec"]["command"]
    assert (shell, option) == ("sh", "-c")
    return image.shell(text, **variables).returncode


def test_the_image_has_the_package_and_the_app(image: Image) -> None:
    done = image.shell("leasemill version && python -c 'import leasemill, tasks; print(leasemill.__file__)'")
    assert done.returncode == 0, done.stderr
    assert str(image.environment) in done.stdout, "the wheel, not this checkout"
    assert sorted(path.name for path in image.workdir.iterdir() if path.suffix) == ["tasks.py"]


def test_workers_wait_for_the_tables_that_the_migration_makes(image: Image, url: str) -> None:
    (waiting,) = pod("Deployment")["initContainers"]
    text = waiting["command"][2]
    awaited = re.fullmatch(r"until (?P<command>leasemill .*); do sleep 2; done", text)
    assert awaited is not None
    database = f"{url}{'&' if '?' in url else '?'}schema=not_yet"
    assert image.shell(awaited["command"], LEASEMILL_URL=database).returncode == 1
    (job,) = pod("Job")["containers"]
    for _ in range(2):
        assert image.shell(" ".join(job["command"]), LEASEMILL_URL=database).returncode == 0, "safe to repeat"
    assert image.shell(text, LEASEMILL_URL=database).returncode == 0


def test_two_workers_run_jobs_and_are_asked_for_their_health_and_their_metrics(
    image: Image, url: str, replicas: list[Replica]
) -> None:
    done = image.shell("""leasemill enqueue tasks:app work --args '{"number": 7}' --id seven""", LEASEMILL_URL=url)
    assert done.returncode == 0, done.stderr
    with open_store(url) as store:
        wait_until(lambda: (job := store.job("seven")) and job.state is JobState.SUCCEEDED, "the job to end")
    first, second = replicas

    def elected() -> float:
        return sum(one.metrics()("leasemill_queues_elected") for one in replicas)

    wait_until(lambda: elected() == 1, "one of the two to count the queues")
    settled = [one.metrics()("leasemill_jobs_total", kind="work", queue="mail", end="succeeded") for one in replicas]
    assert sorted(settled) == [0, 1]

    pod_of_first = {"POD_NAME": first.name, "LEASEMILL_URL": url}
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert probe(image, name, pod_of_first) == 0, name
    away = {"POD_NAME": first.name, "LEASEMILL_URL": NOWHERE}
    assert probe(image, "readinessProbe", away) == 3
    assert probe(image, "livenessProbe", away) == 0, "a restart does not bring the database back"
    assert first.end() == 0
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert probe(image, name, pod_of_first) == 1, name
    assert image.shell(health_check(), LEASEMILL_URL=url, HOSTNAME=second.name).returncode == 0
    assert second.end() == 0


def test_a_worker_exports_every_value_of_a_label_that_a_query_asks_for(image: Image, tmp_path: Path) -> None:
    """With a supervisor, which exports what a single process does not. Series that begin with an event are left out."""
    url = f"file:{tmp_path / 'jobs'}"
    done = image.shell("""leasemill enqueue tasks:app work --args '{"number": 7}'""", LEASEMILL_URL=url)
    assert done.returncode == 0, done.stderr
    worker = Replica(image, url, "mill", "--processes", "1")
    try:
        await_healthy(image, url, worker)
        wait_until(lambda: worker.metrics()("leasemill_queues_elected") == 1, "the queues to be counted")
        wait_until(lambda: worker.metrics()("leasemill_jobs_total") == 1, "the job to end")
        found = worker.metrics()
        asked = 0
        for where, query in queries():
            for name, label, values in values_asked_for(query):
                for value in values:
                    asked += 1
                    assert found.has(name, **{label: value}), f"{where}: no {name} with {label}={value}"
        assert asked >= 8
        begin_with_an_event = {"leasemill_store_failures_total", "leasemill_reaper_stale_duration_seconds"}
        declared = set(re.findall(r"^# TYPE (\w+)", found.text, re.MULTILINE))
        with_value = {re.sub(r"_(bucket|sum|count)$", "", name) for name in found.names}
        assert declared - with_value == begin_with_an_event
        assert worker.end() == 0
    finally:
        worker.process.kill()
        worker.process.wait()
