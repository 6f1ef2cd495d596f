"""The example with models under a second type checker, in strict mode. mypy checks all examples with the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "models" / "orders.py"

WRONG = """

bill.enqueue(typed, Card(number="4111"))
bill.enqueue()
totals.enqueue({"first": 5})
wrong: int = bill.enqueue
"""


def basedpyright(folder: Path, source: str) -> list[dict[str, Any]]:
    (folder / "orders.py").write_text(source)
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    completed = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    found: list[dict[str, Any]] = json.loads(completed.stdout)["generalDiagnostics"]
    return found


def test_an_example_with_models_is_typed_for_pyright_too(tmp_path: Path) -> None:
    assert basedpyright(tmp_path, EXAMPLE.read_text()) == []


def test_pyright_refuses_wrong_models(tmp_path: Path) -> None:
    source = EXAMPLE.read_text()
    found = basedpyright(tmp_path, source + WRONG)
    first = source.count("\n") + 2
    assert {one["range"]["start"]["line"] for one in found} == {first, first + 1, first + 2, first + 3}
