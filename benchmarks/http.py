"""What does a server cost: the same store in process, and behind HTTP; many calls that wait, and nothing to do?

    python -m benchmarks.http [--only batches,single,polls] [--quick]

Batches: claims and acks of 100 jobs, one caller, on a folder; in turn, medians. Single: enqueues of one job by 16
threads, beside a Starlette application that returns what it was sent, asked by the same client; by itself uvicorn reads
requests with h11, with httptools, as our server does, it is quicker. Callers of one store share requests: 16 threads
that enqueue send fewer than they make calls, while the echo gets one for each. What a request costs that nobody shares
is in the rows of one caller alone. Polls: 1,000 claims that wait for one queue; what the server's process needs, and
how long a job takes from the call of its producer to the answer of whoever gets it. The server is a process of its own,
on the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Literal, NamedTuple

import httpx
import msgspec
import psutil
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.children import SPAWN, new_url
from benchmarks.report import Bar, finish, table
from leasemill.demo.server import ServerProcess
from leasemill.demo.workers import wait_until
from leasemill.kernel.commands import AckReport
from leasemill.kernel.model import JobSpec
from leasemill.server.address import bound_socket
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from leasemill.store.http.client import ANSWER_S
from leasemill.store.http.connection import DirectCalls, origin_of

ROWS = ("batches", "single", "polls")
Parser = Literal["h11", "httptools"]
RUNS = 3
BATCH = 100
QUEUE = "bench"
PAYLOAD = b'{"to":"ann@example.com","template":"welcome","number":7}'
THREADS = 16
POLLS = 1_000
AT_ONCE = 100
IDLE_S = 5.0


class Size(msgspec.Struct, frozen=True):
    batches: int
    single: int
    polled: int


WHOLE = Size(100, 4_000, 500)
QUICK = Size(10, 400, 50)


def specs(prefix: str, count: int) -> list[JobSpec]:
    return [JobSpec(f"{prefix}-{number}", QUEUE, "send", PAYLOAD) for number in range(count)]


@contextmanager
def served(url: str, log: Path) -> Iterator[ServerProcess]:
    with ServerProcess(url, log, "--log-level", "error") as server:
        yield server


# Batches -------------------------------------------------------------------------------------------------------


def claimed_and_acked(store: Store, batches: int) -> float:
    """Jobs per second."""
    for number in range(batches):
        store.enqueue(specs(f"batch-{number}", BATCH))
    began = time.perf_counter()
    for _ in range(batches):
        leases = store.claim("bench", [QUEUE], BATCH)
        store.ack([AckReport(lease.job.id, lease.token, b"1") for lease in leases])
    return batches * BATCH / (time.perf_counter() - began)


def measure_batches(next_url: Callable[[], str], folder: Path, size: Size) -> list[Bar]:
    inside, outside = [], []
    for _ in range(RUNS):
        with open_store(next_url()) as store:
            inside.append(claimed_and_acked(store, size.batches))
        with served(next_url(), folder / "batches.log") as server, open_store(server.url) as store:
            outside.append(claimed_and_acked(store, size.batches))
    rows = [("in process", f"{median(inside):,.0f}"), ("over HTTP", f"{median(outside):,.0f}")]
    table(f"claim and ack, {BATCH} at a time", ("", "jobs/s"), rows)
    return [Bar("claim and ack over HTTP, of in process", median(outside) / median(inside), 0.5)]


# Single --------------------------------------------------------------------------------------------------------


def run_echo(port: int, parser: Parser) -> None:
    async def echo(request: Request) -> Response:
        return Response(await request.body(), media_type="application/json")

    app = Starlette(routes=[Route("/v1/enqueue", echo, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, http=parser, log_level="error", access_log=False))
    server.run(sockets=[bound_socket("127.0.0.1", port)])


@contextmanager
def echoing(parser: Parser) -> Iterator[str]:
    with bound_socket("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    process = SPAWN.Process(target=run_echo, args=(port, parser), daemon=True)
    process.start()
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _answers(url), "the echo to answer")
        yield url
    finally:
        process.kill()
        process.join()


def _answers(url: str) -> bool:
    try:
        return httpx.post(f"{url}/v1/enqueue", content=b"{}").status_code == 200
    except httpx.TransportError:
        return False


class Rates(NamedTuple):
    """Calls per second: by 16 threads, and by one caller alone."""

    together: float
    alone: float


def rates_of(call: Callable[[int], object], count: int) -> Rates:
    return Rates(per_second(call, range(count)), per_second_alone(call, range(count, count + count // 4)))


def per_second_alone(call: Callable[[int], object], numbers: range) -> float:
    began = time.perf_counter()
    for number in numbers:
        call(number)
    return len(numbers) / (time.perf_counter() - began)


def per_second(call: Callable[[int], object], numbers: range) -> float:
    with ThreadPoolExecutor(THREADS) as pool:
        began = time.perf_counter()
        for _ in pool.map(call, numbers):
            pass
        return len(numbers) / (time.perf_counter() - began)


def echoed(count: int, parser: Parser) -> Rates:
    body, headers = b'{"jobs":[{"queue":"bench","kind":"send"}]}', {"content-type": "application/json"}
    with echoing(parser) as url, closing(DirectCalls(origin_of(url, None), ANSWER_S)) as connections:
        return rates_of(lambda _: connections.post("/v1/enqueue", headers, body), count)


def enqueued(url: str, log: Path, count: int) -> Rates:
    jobs = specs("single", 2 * count)
    with served(url, log) as server, open_store(server.url) as store:
        return rates_of(lambda number: store.enqueue([jobs[number]]), count)


def measure_single(next_url: Callable[[], str], folder: Path, size: Size) -> list[Bar]:
    ran: dict[str, list[Rates]] = {"echo, with h11": [], "echo, with httptools": [], "enqueue": []}
    for _ in range(RUNS):
        ran["echo, with h11"].append(echoed(size.single, "h11"))
        ran["echo, with httptools"].append(echoed(size.single, "httptools"))
        ran["enqueue"].append(enqueued(next_url(), folder / "single.log", size.single))
    medians = {name: Rates(*map(median, zip(*runs, strict=True))) for name, runs in ran.items()}
    rows = [(name, f"{rates.together:,.0f}", f"{rates.alone:,.0f}") for name, rates in medians.items()]
    table("one job a call, calls/s", ("", f"{THREADS} threads", "one caller alone"), rows)
    enqueue, echo = medians["enqueue"].together, medians["echo, with httptools"].together
    return [Bar("single enqueue, of an echo that httptools reads too", enqueue / echo, 0.3)]


# Polls ---------------------------------------------------------------------------------------------------------


def request_bytes(path: str, body: object) -> bytes:
    content = msgspec.json.encode(body)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


async def answered(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
    return await reader.readexactly(length)


class Poller:
    """A client that claims again and again, and notes when each job was granted."""

    def __init__(self, number: int, granted: dict[str, float]) -> None:
        self._granted = granted
        self._claim = request_bytes(
            "/v1/claim", {"worker": f"poller-{number}", "queues": [QUEUE], "limit": 1, "wait_s": 60}
        )

    async def run(self, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while True:
                writer.write(self._claim)
                for lease in msgspec.json.decode(await answered(reader)):
                    self._granted[lease["job"]["id"]] = time.perf_counter()
        finally:
            writer.close()


async def poll(server: ServerProcess, count: int) -> tuple[float, float, list[float]]:
    """Bytes for each call that waits, the share of a core while nothing happens, seconds from enqueue to grant."""
    port, process = int(server.url.rpartition(":")[2]), psutil.Process(server.pid)
    before, granted = process.memory_info().rss, dict[str, float]()
    pollers: list[asyncio.Future[None]] = []
    async with httpx.AsyncClient(base_url=server.url) as client:
        while len(pollers) < POLLS:  # in steps: a server cuts connections off when too many have sent nothing yet
            numbers = range(len(pollers), len(pollers) + AT_ONCE)
            pollers += [asyncio.ensure_future(Poller(number, granted).run(port)) for number in numbers]
            while _open_polls((await client.get("/metrics")).text) < len(pollers):
                for poller in pollers:
                    if poller.done():
                        poller.result()  # it does not end by itself: this raises why
                await asyncio.sleep(0.05)
    memory = (process.memory_info().rss - before) / POLLS
    spent = sum(process.cpu_times()[:2])
    await asyncio.sleep(IDLE_S)
    idle = (sum(process.cpu_times()[:2]) - spent) / IDLE_S
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent: dict[str, float] = {}
    for number in range(count):
        job_id = f"polled-{number}"
        sent[job_id] = time.perf_counter()
        writer.write(request_bytes("/v1/enqueue", {"jobs": [{"id": job_id, "queue": QUEUE, "kind": "send"}]}))
        await answered(reader)
        await asyncio.sleep(0.02)
    while len(granted) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    for poller in pollers:
        poller.cancel()
    await asyncio.gather(*pollers, return_exceptions=True)
    writer.close()
    return memory, idle, [granted[job_id] - at for job_id, at in sent.items()]


def _open_polls(text: str) -> float:
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("leasemill_server_open_polls "))


def measure_polls(next_url: Callable[[], str], folder: Path, size: Size) -> list[Bar]:
    with served(next_url(), folder / "polls.log") as server:
        memory, idle, took_s = asyncio.run(poll(server, size.polled))
    p50, p99 = median(took_s) * 1_000, quantiles(took_s, n=100)[98] * 1_000
    rows = [
        ("memory for each", f"{memory / 1_024:,.0f} KiB"),
        ("CPU while nothing happens", f"{idle:.1%}"),
        ("from enqueue to grant, median", f"{p50:.1f} ms"),
        ("from enqueue to grant, p99", f"{p99:.1f} ms"),
    ]
    table(f"{POLLS:,} claims that wait", ("", ""), rows)
    return [Bar("ms from enqueue to grant, p99", p99, 30, at_least=False)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(ROWS), help="of " + ", ".join(ROWS))
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs")
    arguments = parser.parse_args()
    size = QUICK if arguments.quick else WHOLE
    measures = {"batches": measure_batches, "single": measure_single, "polls": measure_polls}
    with new_url("file") as next_url:
        folder = Path(next_url().removeprefix("file:")).parent
        finish([bar for row in arguments.only.split(",") for bar in measures[row](next_url, folder, size)])


if __name__ == "__main__":
    main()
