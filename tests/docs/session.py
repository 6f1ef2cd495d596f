"""The Python blocks of one page, run in one process and one namespace.

A program of its own, for whatever interpreter a page is tried with: it reads requests as lines of JSON, and answers
each with a line of JSON. It imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import json
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = "page"


def main() -> None:
    page = ModuleType(PAGE)
    sys.modules[PAGE] = page
    sys.path[0] = str(Path.cwd())
    answers = sys.stdout
    for line in sys.stdin:
        request = json.loads(line)
        printed = io.StringIO()
        error: str | None = None
        with contextlib.redirect_stdout(printed):
            try:
                error = ACTIONS[request["action"]](page, request)
            except BaseException:  # noqa: BLE001 (whatever a page's code raises is its failure)
                error = traceback.format_exc()
        answers.write(json.dumps({"printed": printed.getvalue(), "error": error}) + "\n")
        answers.flush()


def run(page: ModuleType, request: dict[str, Any]) -> None:
    source = "\n" * (request["line"] - 1) + request["source"]
    exec(compile(source, request["where"], "exec"), vars(page))


def run_session(page: ModuleType, request: dict[str, Any]) -> str | None:
    test = doctest.DocTestParser().get_doctest(
        request["source"], vars(page), request["where"], request["where"], request["line"] - 1
    )
    if not test.examples:
        return "there is no prompt in this session"
    output: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    result = runner.run(test, out=output.append, clear_globs=False)
    vars(page).update(test.globs)
    return "".join(output) if result.failed else None


def forget(_page: ModuleType, request: dict[str, Any]) -> None:
    """A file was written: import it again."""
    sys.modules.pop(request["module"], None)
    importlib.invalidate_caches()


ACTIONS = {"run": run, "session": run_session, "forget": forget}

if __name__ == "__main__":
    main()
