"""A few hundred requests made from the reference; `make fuzz-http` sends thousands."""

from __future__ import annotations

from pathlib import Path

from leasemill.store.memory import MemoryStore
from tests.lab.http_server import ServerThread
from tests.server.fuzzing import fuzz, sent


def test_every_answer_is_as_the_reference_says(server: ServerThread, store: MemoryStore, tmp_path: Path) -> None:
    with server.serving(store, longest_wait_s=0.01):
        code, output = fuzz(server.url, tmp_path, "--phases", "fuzzing", "--max-examples", "3", "--seed", "1")
    assert code == 0, output[-5_000:]
    assert sent(output) > 100
