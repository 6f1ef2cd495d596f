"""Types: right calls pass mypy and pyright, wrong calls do not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

PREAMBLE = """
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, assert_type
from leasemill import (
    PREVIOUS, App, AsyncContextJob, AsyncJob, Call, ChainHandle, Context, GroupProgress, JobEvent, JobHandle,
    JobProgress, JobState, JobType, Retry, StreamCount, SyncContextJob, SyncJob, Worker, chain,
)

app = App("memory:")

@app.job(queue="billing", lane="account", timeout=300)
async def charge(ctx: Context, account: str, cents: int = 1) -> float:
    async with ctx.commit() as tx:
        assert_type(tx.enqueue(receipt, account=account), JobHandle[str])
    return 1.0

@app.job
def receipt(account: str) -> str:
    return account

@app.job()
async def plain(count: int) -> list[int]:
    return [count]

@app.job
def threaded(ctx: Context, *, flag: bool) -> None:
    with ctx.commit() as tx:
        tx.enqueue(charge, account="a", cents=1)
"""

ACCEPTED = """
assert_type(charge.enqueue(account="a1", cents=500), JobHandle[float])
assert_type(charge.enqueue("a1"), JobHandle[float])
assert_type(receipt.enqueue("a1").result(), str)
assert_type(plain.enqueue(count=1), JobHandle[list[int]])
assert_type(threaded.enqueue(flag=True), JobHandle[None])
assert_type(charge.options(delay=5).enqueue(account="a1"), JobHandle[float])
assert_type(charge.enqueue_many([charge.call("a1"), charge.options(priority=3).call("a2")]), list[JobHandle[float]])
app.enqueue_many([charge.call("a1"), receipt.call("a1")])
assert_type(chain(charge.call("a1"), receipt.call(PREVIOUS)).enqueue(), ChainHandle[str])
assert_type(chain(receipt.call("a1"), charge.call(PREVIOUS), plain.call(1)).enqueue().result(), list[int])
with app.group("all", then=receipt.call("a1"), on_end=plain.call(1)) as group:
    assert_type(group.enqueue_many(charge.call("a1") for _ in range(3)), list[JobHandle[float]])
    assert_type(group.enqueue(chain(charge.call("a1"), receipt.call(PREVIOUS))), JobHandle[str])
assert_type(group.wait(timeout=1), GroupProgress)

shapes: tuple[SyncJob[[str], str], AsyncJob[[int], list[int]]] = receipt, plain
with_context: tuple[AsyncContextJob[..., float], SyncContextJob[..., None]] = charge, threaded
assert_type(receipt("a1"), str)
assert_type(receipt(account="a1"), str)
assert_type(receipt.options(queue="slow", retry="patient", timeout=5, lease="heavy")("a1"), str)
assert_type(receipt.__name__, str)
coroutine: Coroutine[Any, Any, list[int]] = plain(count=1)

def in_a_handler(ctx: Context) -> None:
    assert_type(threaded(ctx, flag=True), None)
    charging: Coroutine[Any, Any, float] = charge(ctx, "a1", cents=2)

@app.cron("@daily", args={"count": 1})
@app.job(retry=Retry(on=(OSError, ValueError), never_on=KeyError))
async def scheduled(count: int) -> list[int]:
    return await plain(count)
coroutine = scheduled(1)

defaults = App("memory:", include=["shop.jobs"], queue="shop", retry="patient", lease="heavy", timeout=60)
assert_type(app.enqueue("ship", queue="mail", to="ann"), JobHandle[Any])
assert_type(app.named("ship", queue="mail").options(delay=5).enqueue(to="ann"), JobHandle[Any])
handle = receipt.enqueue("a1")
assert_type(handle.cancel("enough", by="ann"), bool)
assert_type(handle.progress(), JobProgress | None)
assert_type(handle.wait(timeout=1), JobState)
assert_type(app.enqueue_stream(receipt.call(str(row)) for row in range(9)), StreamCount)
def any_job(job: JobType[..., Any]) -> None: ...
any_job(charge)
any_job(receipt)

async def rows() -> AsyncIterator[Call[str]]:
    yield receipt.call("a1")

async def caller() -> None:
    assert_type(await plain(1), list[int])
    assert_type(await app.aenqueue("ship", queue="mail", to="ann"), JobHandle[Any])
    assert_type(await handle.acancel("enough"), bool)
    assert_type(await handle.aprogress(), JobProgress | None)
    assert_type(await handle.await_end(), JobState)
    assert_type(await app.aenqueue_stream(rows()), StreamCount)
    assert_type(await receipt.aenqueue_stream([receipt.call("a1")]), StreamCount)
    assert_type(await charge.aenqueue(account="a1", cents=5), JobHandle[float])
    assert_type(await (await plain.aenqueue(1)).aresult(timeout=1), list[int])

def declared(job: JobType[[str], str]) -> None: ...
declared(receipt)

@app.on_success
@receipt.on_failure
def sync_hook(event: JobEvent) -> None:
    assert_type(event.error, str | None)

@charge.on_start
@threaded.on_retry
@plain.options(queue="slow").on_lost
async def async_hook(event: JobEvent) -> None: ...

def calls_hooks(event: JobEvent) -> Coroutine[Any, Any, None]:
    sync_hook(event)
    return async_hook(event)

@charge.around
@contextmanager
def around(ctx: Context) -> Iterator[None]:
    assert_type(ctx.is_final(ValueError()), bool)
    yield
Worker(app, queues={"billing": 2, "default": 1})
Worker(app, ["billing"], concurrency=3)
"""

REJECTED = """
charge.enqueue(account="a1", cents="x")  # arg-type
charge.enqueue(cents=5)  # call-arg
charge.enqueue(account="a1", euros=5)  # call-arg
charge.enqueue(1)  # arg-type
charge.call(account=2)  # arg-type
charge.options(delay="soon")  # arg-type
charge.options(when=1)  # call-arg
receipt.enqueue()  # call-arg
plain.enqueue(count="1")  # arg-type
threaded.enqueue(True)  # call-arg
receipt.enqueue_many([plain.call(1)])  # list-item
receipt.enqueue_many([{"account": "a1"}])  # list-item
number: int = receipt.enqueue("a1").result()  # assignment

receipt(1)  # arg-type
receipt()  # call-arg
receipt("a1", "a2")  # call-arg
plain("1")  # arg-type
threaded(flag=True)  # call-arg
charge("a1")  # arg-type
sum_of: int = plain(1)  # assignment
receipt.options(queue=1)  # arg-type
receipt.options(retry="often")  # arg-type
App(retry="often")  # arg-type
Retry(on=[ValueError])  # arg-type
Retry(never_on="ValueError")  # arg-type
receipt.enqueue("a1").cancel(1)  # arg-type
app.named("ship")("a1")  # operator

@app.job(on_failure="explode")  # call-overload
def exploding() -> None: ...

def with_commit(ctx: Context) -> None:
    with ctx.commit() as tx:
        tx.enqueue(receipt, account=1)  # arg-type
        tx.enqueue(receipt)  # call-arg
        ctx.group.enqueue(receipt)  # arg-type

def without_event() -> None: ...
app.on_success(without_event)  # type-var
receipt.on_failure(without_event)  # type-var
receipt.around(without_event)  # type-var
app.on_start("a name")  # type-var
app.named("ship").on_failure(without_event)  # attr-defined

chain(charge, receipt.call("a1"))  # arg-type
chain()  # call-arg
text: int = chain(plain.call(1), receipt.call(PREVIOUS)).enqueue().result()  # assignment
app.group("all", then=receipt)  # arg-type
app.group("all").enqueue(receipt, "a1")  # call-arg
"""


def mypy(tmp_path: Path, source: str) -> list[str]:
    module = tmp_path / "snippet.py"
    module.write_text(textwrap.dedent(source))
    root = Path(__file__).resolve().parents[2]
    completed = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context",
            "--cache-dir", str(tmp_path / "cache"), "--config-file", str(root / "pyproject.toml"), str(module),
        ],
        capture_output=True, text=True, check=False, cwd=root,
    )  # fmt: skip
    assert completed.stderr == ""
    return [line for line in completed.stdout.splitlines() if ": error:" in line]


def pyright(tmp_path: Path, source: str) -> set[int]:
    """The numbers of the lines with errors."""
    module = tmp_path / "snippet.py"
    module.write_text(source)
    completed = subprocess.run(
        [
            sys.executable, "-m", "basedpyright", "--level", "error", "--outputjson",
            "--pythonpath", sys.executable, str(module),
        ],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    return {found["range"]["start"]["line"] + 1 for found in json.loads(completed.stdout)["generalDiagnostics"]}


def expected_errors(source: str) -> list[tuple[int, str]]:
    """The lines that a comment marks, and the error that it names."""
    return [
        (number, match[1])
        for number, line in enumerate(source.splitlines(), 1)
        if (match := re.search(r"# ([a-z-]+)$", line))
    ]


def test_right_calls_are_accepted_and_wrong_calls_rejected(tmp_path: Path) -> None:
    source = PREAMBLE + ACCEPTED + REJECTED
    found = [
        (int(match[1]), match[2])
        for line in mypy(tmp_path, source)
        if (match := re.match(r".*snippet\.py:(\d+): error: .*\[([a-z-]+)\]$", line))
    ]
    expected = expected_errors(source)
    assert [error for error in expected if error not in found] == []
    assert {number for number, _ in found} == {number for number, _ in expected}


def test_pyright_agrees(tmp_path: Path) -> None:
    source = PREAMBLE + ACCEPTED + REJECTED
    assert pyright(tmp_path, source) == {number for number, _ in expected_errors(source)}
