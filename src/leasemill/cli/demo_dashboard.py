"""`leasemill demo --dashboard`: the demo begins when somebody looks, and its pages stay until Ctrl-C."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Final, Self

import click

from leasemill.cli.dashboard import served
from leasemill.cli.store_options import operator_name
from leasemill.server.address import bound_socket
from leasemill.store.factory import open_store

SIGN_IN_WITHIN_S: Final = 600.0
LOOK_S: Final = 0.2
HOST: Final = "127.0.0.1"


class WatchedDemo:
    """Serves the dashboard of the demo's store beside it, on a free port."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._looks = threading.Event()

    def __enter__(self) -> Self:
        self._store = open_store(self._url)
        self._listener = bound_socket(HOST, 0)
        link, self._server = served(
            self._store, self._listener, HOST, by=operator_name(), on_sign_in=lambda _link: self._looks.set()
        )
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listener]}, name="leasemill-dashboard"
        )
        self._thread.start()
        click.echo(f"open the dashboard to start the demo: {link}", err=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()
        self._store.close()

    def await_viewer(self) -> None:
        """Wait for somebody to sign in, for a limited time."""
        self._looks.wait(SIGN_IN_WITHIN_S)

    def stay(self) -> None:
        """Serve until Ctrl-C."""
        click.echo("the dashboard stays up: look at the jobs that ran twice, and stop it with Ctrl-C", err=True)
        with suppress(KeyboardInterrupt):
            while self._thread.is_alive():
                self._thread.join(LOOK_S)
