"""A short slice of the attacks: nothing crashes, memory stays bounded, others are answered. `make attack-http`: all.

The server's patience with slow clients is shorter here, since the attacks last until it is over.
"""

from __future__ import annotations

from pathlib import Path

from tests.lab.served import add_key, exchange, post, serving, status_of
from tests.server.attack import GROWTH_BYTES, TIME, attacked


def test_a_server_under_attack_goes_on_and_answers_others(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'jobs'}"
    _, key = add_key(url)
    with serving(url, "--require-keys", program="tests.server.impatient") as served:
        before = served.memory_bytes
        found, victim = attacked(served, key, seed=7, scale=0.1)
        assert {one.name: one.wrong for one in found if one.wrong} == {}
        assert victim.statuses[200] > 10
        assert served.is_running
        assert served.memory_bytes - before < GROWTH_BYTES
        assert status_of(exchange(served, post(TIME, key=key))) == 200
        assert "Traceback" not in served.text
        assert served.stop() == 0
    assert key.rpartition("_")[2] not in served.text
