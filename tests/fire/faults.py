"""What is done to PostgreSQL and to those who use it, while a bank is at work. Each fault gives a verdict.

Everything random follows from the seed. Numbers are how often; `make test` takes small ones, `make chaos` the full.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg.errors import DeadlockDetected

from leasemill.store.postgres.admin.migrate import migrate
from leasemill.store.postgres.driver.url import parse_url
from tests.fire.load import ROOT, Load, Verdict
from tests.lab.postgres import KillableServer, StopMode
from tests.lab.processes import IMPORT_PATH
from tests.lab.zombie import Variant, play_all, staged

SKEW = Path(__file__).parent / "skewed"
TWO_HOURS_S = 7_200
CONNECTIONS = 60
ORDERS_A_KILL = 8


class Ground:
    """One server, and a schema of its own for each fault."""

    def __init__(self, folder: Path, seed: int, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.seed = seed
        self.source = random.Random(seed)
        self.server = KillableServer(settings={"max_connections": str(CONNECTIONS), **(settings or {})})
        self._schemas = 0

    def url(self) -> str:
        """An empty store."""
        self._schemas += 1
        schema = f"fire_{self._schemas}"
        with self.connected() as connection:
            migrate(connection, schema)
        return f"{self.server.url(tcp=True)}?sslmode=disable&schema={schema}"

    @contextmanager
    def load(
        self, name: str, *, options: str = "", environments: Sequence[Mapping[str, str]] = ({}, {})
    ) -> Iterator[Load]:
        folder = self.folder / name
        folder.mkdir()
        url = self.url()
        with Load(url, folder, url=url + options, environments=environments) as load:
            yield load

    @contextmanager
    def connected(self) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(parse_url(self.server.url(tcp=True))[0], autocommit=True) as connection:
            yield connection

    def pause(self, longest_s: float = 0.6) -> None:
        time.sleep(self.source.uniform(0.05, longest_s))


def workers_killed(ground: Ground, kills: int) -> Verdict:
    with ground.load("killed") as load:
        for _ in range(kills):
            ground.pause()
            load.kill_worker(ground.source.randrange(2))
            load.has_recovered()
        return load.finish()


def zombies(ground: Ground, runs: int) -> Verdict:
    """The effect is counted by the zombie command itself, from the store's records and its handlers' marks."""
    verdict = Verdict()
    with staged(ground.url()) as stage:
        for run in play_all(stage, Variant, runs, parallel=4):
            verdict.runs += 1
            verdict.jobs += 1
            verdict.lost += run.effects == 0
            verdict.doubled += run.effects > 1
            verdict.refused += len(run.refused)
            verdict.wrong += [f"{run.job}: {sentence}" for sentence in run.wrong]
    return verdict


def server_stopped(ground: Ground, mode: StopMode, times: int) -> Verdict:
    with ground.load(f"stopped-{mode}") as load:
        for _ in range(times):
            ground.pause(1.0)
            ground.server.stop(mode)
            ground.pause(0.5)
            ground.server.start()
            load.has_recovered()
        return load.finish()


def server_killed(ground: Ground, times: int) -> Verdict:
    with ground.load("server-killed") as load:
        for _ in range(times):
            ground.pause(1.0)
            ground.server.kill()
            ground.server.start()
            load.has_recovered()
        return load.finish()


def server_down(ground: Ground, seconds: float) -> Verdict:
    with ground.load("down") as load:
        ground.server.stop("fast")
        time.sleep(seconds)
        ground.server.start()
        load.has_recovered()
        return load.finish()


def backends_terminated(ground: Ground, times: int) -> Verdict:
    with ground.load("terminated") as load:
        for _ in range(times):
            ground.pause()
            with ground.connected() as connection:
                connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity "
                    "where pid <> pg_backend_pid() and backend_type = 'client backend'"
                )
            load.has_recovered()
        return load.finish()


def connections_exhausted(ground: Ground, times: int, seconds: float) -> Verdict:
    """Others take every connection there is, and those of the workers are ended: they cannot get new ones."""
    with ground.load("exhausted") as load:
        for _ in range(times):
            taken: list[psycopg.Connection[Any]] = []
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                with suppress(psycopg.OperationalError):
                    while len(taken) < CONNECTIONS:
                        taken.append(psycopg.connect(parse_url(ground.server.url(tcp=True))[0], autocommit=True))
                mine = [one.info.backend_pid for one in taken]
                with suppress(psycopg.Error, IndexError):
                    taken[0].execute(
                        "select pg_terminate_backend(pid) from pg_stat_activity "
                        "where pid <> all (%s) and backend_type = 'client backend'",
                        [mine],
                    )
                time.sleep(0.05)
            for one in taken:
                one.close()
            load.has_recovered()
        return load.finish()


def pool_exhausted(ground: Ground, seconds: float) -> Verdict:
    """One connection of the pool for ten handlers, claims, reports and the heartbeat."""
    with ground.load("small-pool", options="&pool_size=1") as load:
        time.sleep(seconds)
        load.has_recovered()
        return load.finish()


def locks_held(ground: Ground, seconds: float) -> Verdict:
    """A user's session locks an account, so that commits wait in their blocks: the others go on, no lease is lost."""

    def hold(connection: psycopg.Connection[Any]) -> None:
        connection.execute("select from bank.accounts where name in ('a0', 'b0') for update")

    return _held(ground, "locks", seconds, hold)


def tables_locked(ground: Ground, seconds: float) -> Verdict:
    """Somebody locks the store's own tables, as a careless migration might."""
    with ground.load("tables") as load:
        schema = parse_url(load.direct)[1].schema
        lock = f"lock table {schema}.ready, {schema}.leases in access exclusive mode".encode()
        has_held = False
        while not has_held:
            # The store takes the two in either order: now and then it is this session that a deadlock ends.
            with suppress(DeadlockDetected), ground.connected() as connection, connection.transaction():
                connection.execute(lock)
                time.sleep(seconds)
                has_held = True
        load.has_recovered()
        return load.finish()


def snapshot_held(ground: Ground, seconds: float) -> Verdict:
    def hold(connection: psycopg.Connection[Any]) -> None:
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select count(*) from bank.entries")

    return _held(ground, "snapshot", seconds, hold)


def _held(ground: Ground, name: str, seconds: float, hold: Callable[[psycopg.Connection[Any]], None]) -> Verdict:
    with ground.load(name) as load:
        with ground.connected() as connection, connection.transaction():
            hold(connection)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                load.await_effect(time.monotonic())
                ground.pause()
        load.has_recovered()
        return load.finish()


def clocks_skewed(ground: Ground, seconds: float) -> Verdict:
    """The wall clock of one worker is two hours late, of another two hours early: it decides nothing."""
    skews = [
        {"PYTHONPATH": f"{SKEW}:{IMPORT_PATH}", "LEASEMILL_TEST_SKEW_S": str(skew_s)}
        for skew_s in (-TWO_HOURS_S, TWO_HOURS_S)
    ]
    with ground.load("skewed", environments=skews) as load:
        time.sleep(seconds)
        load.has_recovered()
        verdict = load.finish()
        if verdict.refused:
            verdict.wrong.append(f"{verdict.refused} reports were refused")
        return verdict


def example_killed(ground: Ground, kills: int) -> Verdict:
    """examples/outbox: its worker is killed again and again, and the balances are right to the cent."""
    orders = kills * ORDERS_A_KILL
    numbers = ["--orders", str(orders), "--kills", str(kills), "--seed", str(ground.source.randrange(1_000))]
    program = str(ROOT / "examples" / "outbox" / "shop.py")
    done = subprocess.run(
        [sys.executable, program, "--url", ground.server.url(tcp=True), *numbers],
        capture_output=True,
        text=True,
        check=False,
    )
    wrong = [] if done.returncode == 0 else [f"{done.stdout}{done.stderr[-500:]}"]
    return Verdict(runs=kills, jobs=orders, wrong=wrong)
