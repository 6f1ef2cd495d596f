"""`leasemill demo`: its audit holds. That it would not if the fence were missing is shown in chaos.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def run_demo(*options: str, **environment: str) -> tuple[int, str, str]:
    ran = subprocess.run(
        [sys.executable, "-c", "from leasemill.cli import main; main()", "demo", *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        timeout=100,
    )
    return ran.returncode, ran.stdout, ran.stderr


def test_the_demo_holds_and_says_so() -> None:
    code, output, errors = run_demo("--jobs", "200", "--json")
    assert code == 0, output + errors
    told: dict[str, Any] = json.loads(output)
    assert told["holds"]
    assert (told["jobs"], told["effects_once"], told["lanes_in_order"]) == (200, 200, 20)
    assert (told["effects_doubled"], told["effects_missing"]) == (0, 0)
    assert told["handler_runs"] > 200
    assert told["late_reports_refused"]["commit"] > 0
    assert set(told["leases_expired"]) >= {"worker-1", "worker-2"}
    assert told["ran_again_s"][-1] < 30
    assert told["seconds"] < 60
