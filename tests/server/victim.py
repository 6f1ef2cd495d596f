"""The client that must not suffer: a process of its own, so that nothing but the server makes it wait.

It reads a line of JSON (port, key, seconds between requests), asks until its standard input is closed, and prints one
as well: statuses, and how many milliseconds each request took.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.lab.served import Served, post, read_reply, status_of

TIME = "/v1/get_time"


class Victim:
    """What such a process saw, when it has ended."""

    def __init__(self) -> None:
        self.waited_ms: list[float] = []
        self.statuses: Counter[int] = Counter()

    def percentile(self, share: float) -> float:
        ordered = sorted(self.waited_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@contextmanager
def asking(served: Served, key: str, every_s: float = 0.005) -> Iterator[Victim]:
    """A client asks meanwhile; what it saw is there afterwards."""
    victim = Victim()
    command = [sys.executable, "-m", "tests.server.victim"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([served.port, key, every_s]) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "asking\n"
        try:
            yield victim
        finally:
            process.stdin.close()
            statuses, victim.waited_ms = json.loads(process.stdout.readline())
            victim.statuses.update({int(status): count for status, count in statuses.items()})


def main() -> None:
    port, key, every_s = json.loads(sys.stdin.readline())
    request, statuses, waited_ms = post(TIME, key=key), Counter[int](), list[float]()
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        sys.stdout.write("asking\n")
        sys.stdout.flush()
        while not select.select([sys.stdin], [], [], every_s)[0]:
            began = time.perf_counter()
            connection.sendall(request)
            statuses[status_of(read_reply(connection))] += 1
            waited_ms.append((time.perf_counter() - began) * 1000)
    sys.stdout.write(json.dumps([statuses, waited_ms]) + "\n")


if __name__ == "__main__":
    main()
