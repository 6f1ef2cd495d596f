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


def test_the_demos_audit_holds() -> None:
    code, output, errors = run_demo("--jobs", "200", "--json")
    assert code == 0, output + errors
    result: dict[str, Any] = json.loads(output)
    assert result["holds"]
    assert (result["jobs"], result["effects_once"], result["lanes_in_order"]) == (200, 200, 20)
    assert (result["effects_doubled"], result["effects_missing"]) == (0, 0)
    assert result["handler_runs"] > 200
    assert sum(result["late_reports_refused"].values()) > 0
    assert set(result["leases_of_the_dead"]) == {"worker-1"}
    assert set(result["leases_expired"]) == {"worker-2"}
    assert result["ran_again_s"][-1] < 30
    assert result["seconds"] < 60
