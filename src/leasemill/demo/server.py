"""A server in a separate process, which can be stopped, killed and started again at the same address."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Final, Self
from urllib.error import URLError

from leasemill.demo.workers import PROGRAM, TookTooLong, wait_until

HOST: Final = "127.0.0.1"
START_S: Final = 60.0
END_S: Final = 30.0


class ServerProcess:
    """`leasemill serve` on a free port of this machine, for the store at `store_url`."""

    def __init__(self, store_url: str, log: Path, *options: str) -> None:
        self._store_url = store_url
        self._log = log
        self._options = options
        self._port = _free_port()
        self.url = f"http://{HOST}:{self._port}"
        self.start()

    def start(self) -> None:
        """Start the server, and return when it answers."""
        listen = ("--url", self._store_url, "--listen", f"{HOST}:{self._port}")
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, "serve", *listen, *self._options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        wait_until(self._is_ready, "the server to be ready", START_S, every_s=0.02)

    def _is_ready(self) -> bool:
        if self._process.poll() is not None:
            raise TookTooLong(f"the server has ended with {self._process.returncode}:\n{self.log()[-2_000:]}")
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as response:
                return bool(response.status == 200)
        except (URLError, OSError):
            return False

    def log(self) -> str:
        return self._log.read_text()

    @property
    def pid(self) -> int:
        return self._process.pid

    def terminate(self) -> int:
        """Send SIGTERM, and return the exit code."""
        self._process.terminate()
        return self._process.wait(END_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
