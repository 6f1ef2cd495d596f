"""`make chaos`: everything that is done to a store, at full length. Prints what was done and what came of it.

Every run follows from the seed, which is printed; SEED=… repeats it. `file:` needs strace, and root for the real full
disk; what is done to PostgreSQL is in `tests/fire`.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path

import click

from leasemill.store.file import space
from tests.crash import full, killed, simulations, tails
from tests.crash.damage import Behind, DamagedFolder, TornLog
from tests.crash.hammer import Killing
from tests.fire import chaos as fire
from tests.fire.chaos import settled_seed
from tests.lab.faults import Sync

DAMAGES = 24_000
LOSSES = 2_400
KILLS = 200
SCRIPTS = 3
WORK_VARIABLE = "LEASEMILL_CHAOS_WORK"


def _work() -> Path:
    """A place of this process's own: builders of snapshots lock theirs."""
    work = Path(os.environ[WORK_VARIABLE]) / str(os.getpid())
    work.mkdir(exist_ok=True)
    return work


Task = tuple[str, tuple[int | str | bool, ...]]


@cache
def _torn_log(seed: int) -> TornLog:
    return TornLog(_work(), seed=seed)


@cache
def _damaged_folder(seed: int) -> DamagedFolder:
    return DamagedFolder(_work(), seed=seed)


def _torn(seed: int, offset: int, behind: str) -> str:
    _torn_log(seed).check(offset, Behind[behind])
    return "whole prefix"


def _damaged(seed: int, number: int) -> str:
    return _damaged_folder(seed + number // 4_000).check(seed * 1_000_000 + number)


def _crash(seed: int, count: int) -> str:
    simulations.crash_at(seed, _work(), count)
    return "kept"


def _store(seed: int, count: int) -> str:
    simulations.crash_at(seed, _work(), count, steps_after=40, counts_stores=True)
    return "kept"


def _power(seed: int, count: int, luck: int) -> str:
    simulations.lose_power_at(seed, _work(), count, luck)
    return "kept"


def _tail(victim: str, was_last: bool, step: int, first: str, second: str) -> str:
    tails.run_case(_work(), victim, was_last, step, first, second)
    return "kept"


def _unsynced(seed: int) -> str:
    simulations.lose_unsynced(seed, _work())
    return "kept"


def _failed_sync(seed: int, count: int, leaves: str) -> str:
    simulations.fail_sync_at(seed, _work(), count, Sync[leaves])
    return "kept"


def _full(seed: int, count: int) -> str:
    space.SPARE_RETRY_S = 0.0  # type: ignore[misc]
    return "refused, then went on" if simulations.fill_at(seed, _work(), count) else "never in need"


def _reserve(seed: int, count: int) -> str:
    space.SPARE_RETRY_S = 0.0  # type: ignore[misc]
    return "kept" if simulations.crash_when_full(seed, _work(), count) else "ended first"


def _strace(call: str, count: int) -> str:
    return "killed" if killed.kill_at(_work(), call, count) else "ended first"


_TASKS: dict[str, Callable[..., str]] = {
    "torn": _torn,
    "damaged": _damaged,
    "crash": _crash,
    "store": _store,
    "power": _power,
    "tail": _tail,
    "unsynced": _unsynced,
    "failed sync": _failed_sync,
    "full": _full,
    "reserve": _reserve,
    "strace": _strace,
}


def _carried_out(task: Task) -> tuple[Task, str, str | None]:
    name, arguments = task
    try:
        return task, _TASKS[name](*arguments), None
    except BaseException as error:  # noqa: BLE001  (whatever it is, it is a failure and must be reported)
        return task, "FAILED", f"{type(error).__name__}: {error}"


def _prepare() -> None:
    logging.disable(logging.CRITICAL)


class Report:
    """The table, a row for each kind of trouble, printed as it comes."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        click.echo(f"{'what':<58} {'runs':>7} {'s':>6}  verdict")

    def row(self, what: str, runs: int, begun: float, verdict: str) -> None:
        click.echo(f"{what:<58} {runs:>7} {time.monotonic() - begun:>6.0f}  {verdict}")

    def run(self, what: str, tasks: Iterable[Task]) -> None:
        begun = time.monotonic()
        outcomes: Counter[str] = Counter()
        errors: list[str] = []
        with multiprocessing.get_context("fork").Pool(os.cpu_count(), _prepare) as pool:
            for task, outcome, error in pool.imap_unordered(_carried_out, list(tasks), chunksize=8):
                outcomes[outcome] += 1
                if error is not None:
                    errors.append(f"{task}: {error}")
        verdict = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
        self.row(what, outcomes.total(), begun, f"FAILED: {verdict}" if errors else f"ok: {verdict}")
        for error in errors[:5]:
            click.echo(f"    {error}")
        self.failures += errors

    def run_alone(self, what: str, runs: int, act: Callable[[], str]) -> None:
        begun = time.monotonic()
        try:
            verdict = f"ok: {act()}"
        except Exception as error:  # noqa: BLE001  (whatever it is, it is a failure and must be reported)
            self.failures.append(str(error))
            verdict = f"FAILED: {error}"
        self.row(what, runs, begun, verdict)


def _torn_tasks(seed: int) -> Iterator[Task]:
    for offset in _torn_log(seed).offsets():
        for behind in Behind:
            if behind is not Behind.NOTHING or offset % 4 == 0:
                yield "torn", (seed, offset, behind.name)


def _strace_tasks() -> Iterator[Task]:
    for call, highest, step in (("pwrite64", 160, 3), ("fdatasync", 140, 3), ("fsync", 60, 1), ("rename", 50, 1)):
        yield from (("strace", (call, count)) for count in range(1, highest, step))


def _fill_a_real_one() -> str:
    try:
        return full.fill_a_real_one(_work())
    except full.NotPermitted as error:
        return f"only simulated, no file system could be mounted here ({error})"


@click.command()
@click.option("--seed", type=int, default=None, help="Repeats the runs of this seed.")
@click.option("--store", type=click.Choice(["file", "postgresql"]), default="file", show_default=True)
@click.option("--only", default="", help="Only the rows whose name contains this.")
def main(seed: int | None, store: str, only: str) -> None:
    seed = settled_seed(seed)
    click.echo(f"{store}: seed {seed}; again: make chaos STORE={store} SEED={seed}")
    if store == "postgresql":
        wrong = fire.chaos(seed, only)
        if wrong:
            raise SystemExit(f"{len(wrong)} failures; again: make chaos STORE=postgresql SEED={seed}")
        return
    with tempfile.TemporaryDirectory(prefix="leasemill-chaos-") as work:
        os.environ[WORK_VARIABLE] = work
        _chaos(seed, only)


def _chaos(seed: int, only: str) -> None:
    report = Report()
    wanted = partial(_run_if_wanted, report, only)
    wanted("torn at every offset of 400 events (simulated)", lambda: _torn_tasks(seed))
    wanted("bits flipped, frames dropped, doubled, swapped", lambda: (("damaged", (seed, n)) for n in range(DAMAGES)))
    scripts = range(seed, seed + SCRIPTS)
    operations = cache(lambda one: simulations.operations_of_a_script(one, _work()))  # only where a row needs it
    wanted(
        "a process dies at every operation, then the power goes",
        lambda: (("crash", (one, n)) for one in scripts for n in range(1, operations(one) + 1)),
    )
    wanted(
        "or at a store to the control page",
        lambda: (
            ("store", (seed, n))
            for n in range(1, simulations.operations_of_a_script(seed, _work(), counts_stores=True) + 1)
        ),
    )
    wanted(
        "dies at every step of its turn with the lock, two follow",
        lambda: (("tail", case) for case in tails.cases(_work())),
    )
    wanted(
        "the power goes at every operation",
        lambda: (
            ("power", (one, n, luck)) for one in scripts for n in range(1, operations(one) + 1) for luck in (1, 2)
        ),
    )
    wanted(
        "unsynced writes lost and reordered, two processes",
        lambda: (("unsynced", (seed + n,)) for n in range(LOSSES)),
    )
    wanted(
        "sync 1 to 50 of one of two processes fails",
        lambda: (
            ("failed sync", (seed + more, n, leaves.name)) for more in range(4) for n in range(1, 51) for leaves in Sync
        ),
    )
    wanted(
        "no space from every step on (simulated)",
        lambda: (("full", (seed + more, n)) for more in range(6) for n in range(1, 36)),
    )
    wanted(
        "dies at every operation on a full disk (simulated)",
        lambda: (("reserve", (seed + more, n)) for more in range(6) for n in range(1, 120)),
    )
    if only in "no space (a small file system)":
        report.run_alone("no space (a small file system)", 1, _fill_a_real_one)
    if only in "killed inside a system call (strace)":
        _run_strace(report)
    if only in "4 processes, kill -9":
        killing = Killing(_work() / "hammer", seed)
        report.run_alone("4 processes, kill -9", KILLS, lambda: str(killing.run(KILLS)))
    if report.failures:
        raise SystemExit(f"{len(report.failures)} failures; again: make chaos SEED={seed}")


def _run_if_wanted(report: Report, only: str, what: str, tasks: Callable[[], Iterable[Task]]) -> None:
    if only in what:
        report.run(what, tasks())


def _run_strace(report: Report) -> None:
    what = "killed inside a system call (strace)"
    try:
        killed.require_strace()
    except AssertionError as error:
        report.failures.append(str(error))
        report.row(what, 0, time.monotonic(), f"FAILED: {error}")
    else:
        report.run(what, _strace_tasks())


if __name__ == "__main__":
    main()
