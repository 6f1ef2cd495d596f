"""How a handler's process starts, what it brings up, and how a worker reports that it cannot."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from leasemill import App, Worker
from leasemill.errors import Invalid, Refused
from leasemill.store.memory import MemoryStore
from leasemill.worker.processes.launch import Spawned, begin_message
from leasemill.worker.processes.messages import AppTarget
from tests.worker.support import drained, until

MODULE = "jobs_of_a_test"
APP = """
    import os
    from contextlib import asynccontextmanager, contextmanager
    from leasemill import App, Context

    app = App("memory:")

    @app.lifespan
    @asynccontextmanager
    async def lifespan():
        yield {"entered in": os.getpid()}

    @app.around
    @contextmanager
    def around(ctx):
        ctx.state["around"] = os.getpid()
        yield

    @app.job(executor="process")
    def seen(ctx: Context) -> list[int]:
        return [os.getpid(), ctx.state["entered in"], ctx.state["around"]]
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / f"{MODULE}.py").write_text(textwrap.dedent(APP))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield importlib.import_module(MODULE)
    del sys.modules[MODULE]


async def test_a_process_has_the_apps_lifespan_and_hooks(module: ModuleType) -> None:
    async def run(**options: object) -> list[int]:
        handle = module.seen.enqueue()
        await drained(module.app, **options)
        result: list[int] = handle.result(timeout=0)
        return result

    pid, entered, around = await run(concurrency=1)
    assert pid == entered == around
    other, *_ = await run(concurrency=1)
    assert other != pid, "processes end with their worker"


async def test_an_app_without_a_name_in_a_module_is_refused_with_advice() -> None:
    app = App(store=MemoryStore())

    @app.job(executor="process")
    def local() -> None: ...

    with pytest.raises(Invalid, match=r"the app is not a module-level variable: .* `app = App\(\)` in tasks\.py"):
        await Worker(app, handle_signals=False).run()


@pytest.mark.parametrize("executor", ["proces", None, "fork"])
def test_an_unknown_executor_is_refused_where_it_is_written(executor: object) -> None:
    app = App(store=MemoryStore())
    if executor is not None:
        with pytest.raises(Invalid, match="write 'thread' or 'process'"):
            app.job(executor=executor)  # type: ignore[call-overload]

    @app.job
    def local() -> None: ...

    with pytest.raises(Invalid, match="write 'thread' or 'process'"):
        Worker(app, executor=executor)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["app", "no_app"])
async def test_a_process_whose_worker_ends_while_it_starts_ends_without_a_word(
    module: ModuleType, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    starting = Spawned(begin_message(module.app, AppTarget(MODULE, name)), "worker-1")
    starting.channel.close()
    await until(lambda: not starting.is_running(), "the process to end", 60)
    starting.reap()
    assert capfd.readouterr().err == ""


async def test_a_module_that_cannot_be_imported_again_ends_the_worker_at_its_start(
    module: ModuleType, tmp_path: Path
) -> None:
    handle = module.seen.enqueue()
    (tmp_path / f"{MODULE}.py").write_text("raise RuntimeError('the shelf is gone')\n")
    with pytest.raises(Refused, match=r"(?s)cannot be imported.*RuntimeError: the shelf is gone"):
        await drained(module.app)
    assert handle.record().attempt == 0


async def test_a_job_that_the_process_does_not_know_ends_the_worker_at_its_start(module: ModuleType) -> None:
    @module.app.job(executor="process")  # type: ignore[untyped-decorator]
    def declared_by_the_program() -> None: ...

    with pytest.raises(Refused, match=r"does not know declared_by_the_program: .*App\(include="):
        await drained(module.app)


PROGRAM = """
    from leasemill import App, Worker

    app = App("memory:")

    @app.job
    def double(number: int) -> int:
        return 2 * number

    {guard}
        handle = double.enqueue(21)
        Worker(app, executor="process", concurrency=1, drain=True).run_sync()
        print("the answer is", handle.result(timeout=0))
"""


@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_program_of_one_file_runs_its_handlers_in_processes_behind_its_guard(
    tmp_path: Path, is_guarded: bool
) -> None:
    guard = 'if __name__ == "__main__":' if is_guarded else "if True:"
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM.format(guard=guard)))
    done = subprocess.run(
        [sys.executable, program], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    if is_guarded:
        assert (done.stdout, done.returncode) == ("the answer is 42\n", 0), done.stderr
    else:
        assert done.returncode == 1
        assert 'start it behind `if __name__ == "__main__":`' in done.stderr
