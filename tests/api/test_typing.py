"""Types: right calls pass mypy, wrong calls do not."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

PREAMBLE = """
from typing import assert_type
from leasemill import PREVIOUS, App, ChainHandle, Context, GroupProgress, JobHandle, JobType, Worker, chain

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
assert_type(group.wait_end(timeout=1), GroupProgress)

async def caller() -> None:
    assert_type(await charge.aenqueue(account="a1", cents=5), JobHandle[float])
    assert_type(await (await plain.aenqueue(1)).aresult(timeout=1), list[int])

def declared(job: JobType[[str], str]) -> None: ...
declared(receipt)
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

@app.job(on_failure="explode")  # call-overload
def exploding() -> None: ...

def with_commit(ctx: Context) -> None:
    with ctx.commit() as tx:
        tx.enqueue(receipt, account=1)  # arg-type
        tx.enqueue(receipt)  # call-arg
        ctx.group.enqueue(receipt)  # arg-type

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


def test_right_calls_are_accepted_and_wrong_calls_rejected(tmp_path: Path) -> None:
    source = PREAMBLE + ACCEPTED + REJECTED
    found = [
        (int(match[1]), match[2])
        for line in mypy(tmp_path, source)
        if (match := re.match(r".*snippet\.py:(\d+): error: .*\[([a-z-]+)\]$", line))
    ]
    expected = [
        (number, match[1])
        for number, line in enumerate(source.splitlines(), 1)
        if (match := re.search(r"# ([a-z-]+)$", line))
    ]
    assert [error for error in expected if error not in found] == []
    assert {number for number, _ in found} == {number for number, _ in expected}
