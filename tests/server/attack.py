"""Attacks on `leasemill serve`, while another client measures how long it waits.

`python -m tests.server.attack` (make attack-http) runs all of them at full length against a process with keys and
prints what came of it. It exits with 1 if the server died, grew by more than 300 MB, answered anything wrong, or let
the other client wait for more than 100 ms (the 99th percentile). tests/server/test_attack.py runs a short slice.
"""

from __future__ import annotations

import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import click

from tests.lab.served import Served, add_key, exchange, post, read_reply, serving, status_of
from tests.server.victim import Victim, asking

TIME = "/v1/get_time"
P99_MS = 100.0
GROWTH_BYTES = 300_000_000
MIB = 1024 * 1024
LONG = b"/" + b"a" * 9_000
TWICE = b"host: a\r\nhost:"


@dataclass
class Found:
    """What one attack saw: how many answers of each status (0: none, the connection was closed)."""

    name: str
    statuses: Counter[int] = field(default_factory=Counter)
    allowed: frozenset[int] = frozenset()

    @property
    def wrong(self) -> set[int]:
        return set(self.statuses) - self.allowed


# The attacks -------------------------------------------------------------------------------------------------------


def malformed(served: Served, key: str, count: int, seed: int) -> Found:
    """Requests that are none, or nearly one. Each has a connection of its own."""
    source = random.Random(seed)
    found = Found("malformed", allowed=frozenset({0, 200, 400, 401, 404, 405, 408, 411, 413, 415, 421, 422, 431, 501}))
    with ThreadPoolExecutor(8) as executor:
        raws = [nonsense(source, key) for _ in range(count)]
        found.statuses.update(executor.map(lambda raw: _half_closed(served, raw), raws))
    return found


def nonsense(source: random.Random, key: str) -> bytes:
    good = post(TIME, b'{"a":1}', key)
    head, _, body = good.partition(b"\r\n\r\n")
    choices: list[Callable[[], bytes]] = [
        lambda: source.randbytes(source.randrange(1, 3_000)),
        lambda: good[: source.randrange(len(good))],
        lambda: _flipped(source, good),
        lambda: good.replace(b"POST", source.choice([b"", b"GET /", b"P\0ST", b"\xff\xfe", b"POST " * 50, b"TRACE"])),
        lambda: good.replace(b"/v1", source.choice([b"", b"//v1", b"/%00", b"/\xc3\xa9", LONG, b"/..", b"*"])),
        lambda: good.replace(b"HTTP/1.1", source.choice([b"HTTP/0.9", b"HTTP/1.0", b"HTTP/2", b"HTTP/1.1 x", b""])),
        lambda: good.replace(b"host:", source.choice([b"host :", b"ho\0st:", b" host:", TWICE, b":", b"h\xf6:"])),
        lambda: good.replace(b"content-length: 7", source.choice([
            b"content-length: -1", b"content-length: 1e9", b"content-length: 0x7", b"content-length: 7, 8",
            b"content-length: 99999999999999999999", b"content-length: 7\r\ncontent-length: 9", b"content-length: +7",
            b"content-length: 7\r\ntransfer-encoding: chunked", b"transfer-encoding: gzip, chunked",
            b"transfer-encoding: chunked, chunked", b"transfer-encoding: x", b"transfer-encoding : chunked",
        ])),
        lambda: head.replace(b"content-length: 7", b"transfer-encoding: chunked") + b"\r\n\r\n" + source.choice([
            b"zz\r\nabc", b"-1\r\n", b"FFFFFFFFFFFFFFFF\r\n", b"7\r\n" + body + b"x", b"7;" + b"x" * 9_000 + b"\r\n",
            b"7\r\n" + body + b"\r\n0\r\nx: y\r\n", b"0" * 9_000, b"7\r\n" + body + b"\r\n0\r\n\r\n",
        ]),
        lambda: good.replace(b"\r\n", source.choice([b"\n", b"\r", b"\r\r\n", b"\0"])),
        lambda: good.replace(b"application/json", source.choice([b"text/html", b"", b"\0", b"application/json; x=y"])),
        lambda: good.replace(b"Bearer ", source.choice([b"", b"Bearer\t", b"Basic ", b"Bearer " * 100, b"\xff "])),
        lambda: good * source.randrange(2, 20),
        lambda: head + b"\r\n\r\n" + source.choice([b'{"a":', b"[[[[[[[", b"\xff" * 7, b'"\\ud800"', b"1e999", b"NaN"]),
        lambda: good.replace(b"\r\n\r\n", b"\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"),
        lambda: good.replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n"),
        lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + source.randbytes(200),
    ]  # fmt: skip
    return source.choice(choices)()


def _flipped(source: random.Random, raw: bytes) -> bytes:
    changed = bytearray(raw)
    for _ in range(source.randrange(1, 6)):
        changed[source.randrange(len(changed))] = source.randrange(256)
    return bytes(changed)


def _half_closed(served: Served, raw: bytes) -> int:
    """Nothing more comes: a server that waits for the rest must notice."""
    with served.connect() as connection:
        connection.settimeout(60)
        with suppress(OSError):
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            return status_of(read_reply(connection))
        return 0


def slow_heads(served: Served, count: int) -> list[socket.socket]:
    """Slowloris: connections that have sent a part of a head."""
    connections = [served.connect() for _ in range(count)]
    for connection in connections:
        connection.sendall(b"POST /v1/get_time HTTP/1.1\r\nhost: localhost\r\nx-a: ")
    return connections


def trickle(connections: list[socket.socket], stopped: threading.Event) -> None:
    """A byte now and then, so that none of them is idle."""
    while not stopped.wait(0.25):
        for connection in connections:
            with suppress(OSError):
                connection.send(b"a")


def slow_bodies(served: Served, key: str | None, count: int) -> list[socket.socket]:
    """Whole heads, and a body that never ends."""
    connections = [served.connect() for _ in range(count)]
    for connection in connections:
        connection.sendall(post(TIME, b" " * 10_000, key)[:-9_990])
    return connections


def huge(served: Served, key: str, megabytes: int) -> Found:
    """Bodies that announce too much, that do not announce how much, and that are nested deeply."""
    found = Found("huge and deep", allowed=frozenset({0, 400, 401, 408, 413, 422}))
    announced = post(TIME, b"", key).replace(b"content-length: 0", b"content-length: 9999999999")
    found.statuses[status_of(exchange(served, announced))] += 1
    for sent_key in (key, "lm_0123456789ab_" + "0" * 64):
        found.statuses[_chunked(served, sent_key, megabytes)] += 1
    for depth in (1_000, 100_000, 5_000_000):
        for body in (b"[" * depth, b'{"a":' * depth, b'{"jobs":' + b"[" * depth):
            found.statuses[status_of(exchange(served, post("/v1/enqueue", body, key)))] += 1
        nested = b'{"jobs":[{"id":"a","queue":"q","kind":"k","payload":' + b"[" * depth + b"]" * depth + b"}]}"
        found.statuses[status_of(exchange(served, post("/v1/enqueue", nested, key)))] += 1
    return found


def _chunked(served: Served, key: str, megabytes: int) -> int:
    head = post(TIME, b"", key).replace(b"content-length: 0", b"transfer-encoding: chunked")
    chunk = b"100000\r\n" + b"a" * MIB + b"\r\n"
    with served.connect() as connection:
        connection.settimeout(60)
        with suppress(ConnectionError):
            connection.sendall(head)
            for _ in range(megabytes):
                connection.sendall(chunk)
        with suppress(ConnectionError):
            return status_of(read_reply(connection))
        return 0


def header_bombs(served: Served, count: int) -> Found:
    found = Found("header bombs", allowed=frozenset({0, 400, 431}))
    many = b"".join(b"x-%d: y\r\n" % number for number in range(50_000))
    bombs = (b"x: " + b"a" * MIB + b"\r\n", many, b"x: y\r\n" * 50_000, b"a" * MIB)
    for number in range(count):
        raw = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + bombs[number % len(bombs)] + b"\r\n"
        found.statuses[_half_closed(served, raw)] += 1
    return found


def non_readers(served: Served, key: str, count: int) -> list[socket.socket]:
    """Many requests on each connection, and no answer is ever read."""
    connections = [served.connect() for _ in range(count)]
    for connection in connections:
        connection.setblocking(False)
        with suppress(OSError):
            connection.send(post("/openapi.json", key=key).replace(b"POST", b"GET") * 50)
    return connections


# All of them -------------------------------------------------------------------------------------------------------


def attacked(served: Served, key: str, seed: int, scale: float) -> tuple[list[Found], Victim]:
    """All attacks at once, the slow ones beneath the others; and what another client saw meanwhile."""
    count, stopped = max(1, int(200 * scale)), threading.Event()
    held = [
        *slow_heads(served, count),
        *slow_bodies(served, key, max(1, count // 4)),
        *slow_bodies(served, None, max(1, count // 4)),
        *non_readers(served, key, max(1, count // 10)),
    ]
    trickling = threading.Thread(target=trickle, args=(held[:count], stopped))
    trickling.start()
    try:
        with asking(served, key) as victim:
            found = [
                malformed(served, key, max(20, int(500 * scale)), seed),
                huge(served, key, max(1, int(300 * scale))),
                header_bombs(served, max(4, int(40 * scale))),
            ]
    finally:
        stopped.set()
        trickling.join(60)
        for connection in held:
            connection.close()
    return [*found, Found("the other client", victim.statuses, frozenset({200}))], victim


@click.command()
@click.option("--seed", default=None, type=int, help="To repeat a run.")
@click.option("--scale", default=1.0, help="A part of the full length.")
def main(seed: int | None, scale: float) -> None:
    """Attack a server with everything there is, and see that it goes on."""
    seed = random.randrange(10**6) if seed is None else seed
    with tempfile.TemporaryDirectory() as folder:
        url = f"file:{folder}/jobs"
        _, key = add_key(url)
        with serving(url, "--require-keys") as served:
            before = served.memory_bytes
            with asking(served, key) as quiet:
                time.sleep(2)
            found, victim = attacked(served, key, seed, scale)
            growth, text, was_running = served.memory_bytes - before, served.text, served.is_running
    click.echo(f"seed {seed}")
    for one in found:
        seen = " ".join(f"{status}:{count}" for status, count in sorted(one.statuses.items()))
        click.echo(f"{one.name:<18} {seen}")
    click.echo(f"the other client   alone p50 {quiet.percentile(0.5):.1f} ms, p99 {quiet.percentile(0.99):.1f} ms")
    click.echo(
        f"under attack       p50 {victim.percentile(0.5):.1f} ms, p99 {victim.percentile(0.99):.1f} ms, "
        f"longest {max(victim.waited_ms):.1f} ms, of {len(victim.waited_ms):,} requests"
    )
    click.echo(f"memory             grew by {growth / 1e6:.0f} MB")
    failures = [f"{one.name}: statuses {sorted(one.wrong)}" for one in found if one.wrong]
    failures += ["the server died"] * (not was_running) + ["a traceback was logged"] * ("Traceback" in text)
    failures += [f"memory grew by more than {GROWTH_BYTES / 1e6:.0f} MB"] * (growth > GROWTH_BYTES)
    failures += [f"p99 is over {P99_MS:.0f} ms"] * (victim.percentile(0.99) > P99_MS)
    for failure in failures:
        click.echo(f"FAILED: {failure}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
