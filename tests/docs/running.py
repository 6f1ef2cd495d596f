"""Runs a page from top to bottom in a folder, as a reader would who copies block after block."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.docs.pages import RUN, Block, blocks, commands, matches, ports, with_ports

COMMAND_TIMEOUT_S: Final = 60
SESSION: Final = Path(__file__).with_name("session.py")


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return str(found.getsockname()[1])


class Mismatch(AssertionError):
    """A page shows what is not so."""


class PageRun:
    """One page, one folder, one interpreter: the programs beside that interpreter are the ones commands find."""

    def __init__(self, page: Path, folder: Path, python: str = sys.executable) -> None:
        self.page = page
        self.ran: list[Block] = []
        self._folder = folder
        self._ports: dict[str, str] = {}
        self._environment = {
            "PATH": f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "HOME": str(folder),
            "USER": "ann",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "PYTHONUNBUFFERED": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # a reader has pytest and Leasemill, and its plugin
            "PYTEST_PLUGINS": "pytest_leasemill",
        }
        if "pytest-django`.\n" in page.read_text():  # the page says that its examples need it
            self._environment["PYTEST_ADDOPTS"] = "-p django"
        self._session = subprocess.Popen(
            [python, str(SESSION)],
            cwd=folder,
            env=self._environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.communicate(timeout=COMMAND_TIMEOUT_S)

    def run(self) -> None:
        """Every block that can be run, in order; the first that does not do as it says raises Mismatch."""
        printed: str | None = None
        for block in blocks(self.page):
            if block.language not in RUN:
                continue
            if block.language == "text":
                self._compare(block, block.text, printed)
                printed = None
            elif printed:
                raise Mismatch(f"{self.ran[-1].where} prints, and the page does not show it:\n{printed}")
            elif block.language == "console":
                self._run_commands(block)
            elif block.title is not None:
                self._write(block)
            else:
                printed = self._run_python(block)
            self.ran.append(block)
        if printed:
            raise Mismatch(f"{self.ran[-1].where} prints, and the page does not show it:\n{printed}")

    def _compare(self, block: Block, expected: str, printed: str | None) -> None:
        if printed is None or not matches(expected, printed):
            raise Mismatch(f"{block.where} shows\n{expected}\nbut this was printed:\n{printed}")

    def _write(self, block: Block) -> None:
        assert block.title is not None
        path = self._folder / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()  # of an earlier block: as long and as old, it would be taken for this one's
        self._ask({"action": "forget", "module": path.stem})

    def _run_python(self, block: Block) -> str:
        action = "session" if block.language == "pycon" else "run"
        answer = self._ask({"action": action, "source": block.text, "line": block.line, "where": block.where})
        if answer["error"] is not None:
            raise Mismatch(f"{block.where}:\n{answer['error']}")
        return str(answer["printed"])

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._session.stdin is not None
        assert self._session.stdout is not None
        self._session.stdin.write(json.dumps(request) + "\n")
        self._session.stdin.flush()
        line = self._session.stdout.readline()
        if not line:
            raise Mismatch(f"{self.page.name}: the interpreter ended at {request}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _run_commands(self, block: Block) -> None:
        exit_code = 0
        for command in commands(block):
            where = f"{self.page.name}:{command.line}: {command.text}"
            if exit_code and command.text != "echo $?":
                raise Mismatch(f"the command before {where} ended with {exit_code}, and the page does not say so")
            self._ports |= {port: free_port() for port in ports(command.text) - self._ports.keys()}
            completed = subprocess.run(
                ["bash", "-c", f"(exit {exit_code})\n{with_ports(command.text, self._ports)}"],
                cwd=self._folder,
                env=self._environment,
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
            printed = with_ports(completed.stdout, {free: port for port, free in self._ports.items()})
            if not matches(command.expected, printed):
                raise Mismatch(f"{where}\nshows\n{command.expected}\nbut this was printed:\n{printed}")
            exit_code = completed.returncode if completed.returncode >= 0 else 128 - completed.returncode
        if exit_code:
            raise Mismatch(f"{block.where}: the last command ended with {exit_code}, and the page does not say so")
