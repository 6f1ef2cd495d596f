"""A network that drops packets without a word: workers in a network namespace, wrong neighbour entries on both sides.

Nothing is refused and nothing is reset: whatever is sent is lost, as behind a broken switch or a firewall that forgets.
Needs Linux, root and the right to make namespaces; where these are missing it is reported as not run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from tests.fire.faults import Ground
from tests.fire.load import Load, Verdict
from tests.lab.processes import IMPORT_PATH, WorkerProcess, wait_until

NAMESPACED: Final = Path(__file__).parent / "namespaced"
NOBODY: Final = "02:00:00:00:00:99"
LONGEST_RETURN_S: Final = 5.0
SHUTDOWN_S: Final = 1.5
BACKLOG_S: Final = 600.0
"""One worker has to do what the producers enqueued while it was cut off."""
SPARE_S: Final = 1.5
"""For the interpreter to end, beyond the shutdown timeout."""


class NoNamespaces(Exception):
    """This machine does not let us make network namespaces."""


class Network:
    """A pair of interfaces: `host` here, `guest` in a namespace."""

    def __init__(self) -> None:
        number = os.getpid() % 250
        self.name = f"leasemill{os.getpid()}"
        self.host, self.guest = f"198.18.{number}.1", f"198.18.{number}.2"
        self._here, self._there = f"lm{os.getpid()}a", f"lm{os.getpid()}b"

    def __enter__(self) -> Self:
        if shutil.which("ip") is None:
            raise NoNamespaces("there is no `ip` command: install iproute2")
        try:
            _ip("netns", "add", self.name)
            _ip("link", "add", self._here, "type", "veth", "peer", "name", self._there, "netns", self.name)
            _ip("addr", "add", f"{self.host}/30", "dev", self._here)
            _ip("link", "set", self._here, "up")
            _ip("-n", self.name, "addr", "add", f"{self.guest}/30", "dev", self._there)
            _ip("-n", self.name, "link", "set", self._there, "up")
        except subprocess.CalledProcessError as error:
            self.__exit__()
            raise NoNamespaces(f"network namespaces cannot be made here: {error.stderr.strip()}") from None
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["ip", "link", "del", self._here], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, check=False)

    @property
    def environment(self) -> Mapping[str, str]:
        """For a worker that lives in the namespace."""
        return {"PYTHONPATH": f"{NAMESPACED}:{IMPORT_PATH}", "LEASEMILL_TEST_NETNS": self.name}

    def drop(self) -> None:
        """From now on every packet goes to an address that nobody has."""
        _ip("neigh", "replace", self.guest, "lladdr", NOBODY, "dev", self._here, "nud", "permanent")
        _ip("-n", self.name, "neigh", "replace", self.host, "lladdr", NOBODY, "dev", self._there, "nud", "permanent")

    def restore(self) -> None:
        _ip("neigh", "del", self.guest, "dev", self._here)
        _ip("-n", self.name, "neigh", "del", self.host, "dev", self._there)


def packets_dropped(folder: Path, seed: int, outages_s: list[float]) -> Verdict:
    """Work goes on soon after the network is back, however long it was away; a worker can be stopped meanwhile."""
    try:
        with Network() as network:
            return _dropped(network, folder / "dropped", seed, outages_s)
    except NoNamespaces as error:
        return Verdict(not_run=str(error))


def _dropped(network: Network, folder: Path, seed: int, outages_s: list[float]) -> Verdict:
    folder.mkdir()
    access = folder / "pg_hba.conf"
    access.write_text(f"local all all trust\nhost all all 127.0.0.1/32 trust\nhost all all {network.host}/30 trust\n")
    for path in (folder.parent, folder, access):
        path.chmod(0o755)  # the server is another user
    settings = {"listen_addresses": f"127.0.0.1,{network.host}", "hba_file": str(access)}
    ground = Ground(folder, seed, settings)
    with ground.server:
        direct = ground.url()
        url = direct.replace("127.0.0.1", network.host)
        with Load(direct, folder, url=url, environments=[network.environment]) as load:
            for outage_s in outages_s:
                ground.pause()
                _one_outage(network, load, outage_s)
            return load.finish(BACKLOG_S)


def _one_outage(network: Network, load: Load, outage_s: float) -> None:
    verdict = load.verdict
    number = verdict.runs
    options = ["--shutdown-timeout", f"{SHUTDOWN_S:g}"]
    log = load.folder / f"stopped-{number}.log"
    with WorkerProcess(
        "tests.fire.bank:app", url=load.url, log=log, options=options, folder=load.folder,
        environment=network.environment,
    ) as other:  # fmt: skip
        wait_until(lambda: other.has_logged("worker started"), "the worker to start", 30)
        network.drop()
        dropped_at = time.monotonic()
        time.sleep(outage_s / 2)
        ended_at = time.monotonic()
        other.end(limit_s=60)
        took_s = time.monotonic() - ended_at
    print(f"    SIGTERM after {outage_s / 2:.0f} s without a network: exit after {took_s:.1f} s")  # noqa: T201
    if took_s > SHUTDOWN_S + SPARE_S:
        verdict.wrong.append(f"a worker took {took_s:.1f} s to exit while the network was away")
    time.sleep(max(0.0, dropped_at + outage_s - time.monotonic()))
    network.restore()
    began = time.monotonic()
    load.await_effect(began)
    back_s = time.monotonic() - began
    print(f"    {outage_s:.0f} s without a network: work went on {back_s:.1f} s after its return")  # noqa: T201
    if back_s > LONGEST_RETURN_S:
        verdict.wrong.append(f"work went on {back_s:.1f} s after the network's return")
    verdict.runs += 1


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)
