"""`leasemill dashboard`: pages for operators, on loopback, for whoever has the link that it prints."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from leasemill.cli.store_options import opened, operator_name, redact_option, url_option
from leasemill.errors import Invalid
from leasemill.server.address import bound_socket, is_loopback, listen_address
from leasemill.store.base import Store

if TYPE_CHECKING:  # the extra may not be installed
    from leasemill.dashboard import Dashboard
    from leasemill.dashboard.server import DashboardServer

DEFAULT_LISTEN = "127.0.0.1:7412"
NICENESS = 10
MOST_CONNECTIONS = 500
"""A browser opens a few connections, one of them for the live updates of each open page."""


@click.command()
@url_option
@click.option(
    "--listen",
    default=DEFAULT_LISTEN,
    show_default=True,
    metavar="HOST:PORT",
    help="Where to serve; port 0 is any free port.",
)
@click.option("--read-only", is_flag=True, help="Show everything, but allow no actions.")
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="HOST[:PORT]",
    help="Also accept this Host header, for a tunnel or a container; may be repeated.",
)
@redact_option
@click.option(
    "--by", default=operator_name, help="Who acts, for the audit trail. Default: the name of the current user."
)
def dashboard(url: str, listen: str, read_only: bool, hosts: tuple[str, ...], redact: tuple[str, ...], by: str) -> None:
    """Serve pages that show jobs, queues and leases live, and let you act on them.

    It prints a link that signs you in once, and a new link each time one is used. Stop it with Ctrl-C.
    """
    host, port = listen_address(listen)
    if not is_loopback(host) and not hosts:
        raise Invalid(
            f"{host} can be reached from other machines: name the hosts it serves with --allow-host, or mount "
            "leasemill.dashboard.asgi in an application that has its own sign-in"
        )
    with opened(url) as store, bound_socket(host, port) as listener:
        step_aside()
        address, server = served(
            store, listener, host, by=by, on_sign_in=_signed_in, is_read_only=read_only, hosts=hosts, redact=redact
        )
        click.echo(f"dashboard of {store.name}" + (", read only" if read_only else ""))
        click.echo(f"sign in (works once): {address}")
        with suppress(KeyboardInterrupt):  # uvicorn has stopped by then, and passes it on
            server.run(sockets=[listener])


def step_aside() -> None:
    """Lower this process's priority. On `file:` it reads all that workers write a second time; they come first."""
    os.nice(NICENESS)


def _signed_in(next_link: str) -> None:
    click.echo(f"signed in; to sign in elsewhere: {next_link}")


def served(
    store: Store,
    listener: socket.socket,
    host: str,
    *,
    by: str,
    on_sign_in: Callable[[str], object],
    is_read_only: bool = False,
    hosts: tuple[str, ...] = (),
    redact: tuple[str, ...] = (),
) -> tuple[str, DashboardServer]:
    """Return a link that signs in, and the server. `on_sign_in` is called with the next link when one was used."""
    try:
        import uvicorn

        from leasemill.api.redaction import SECRET_KEYS
        from leasemill.dashboard import Dashboard, Principal, ViewerRole
        from leasemill.dashboard.access import SignIn
        from leasemill.dashboard.server import DashboardServer
        from leasemill.server.protocol import Connected, guarded
        from leasemill.server.security import affordable
    except ModuleNotFoundError as error:
        raise Invalid(f"the dashboard needs {error.name}: pip install 'leasemill[server]'") from None
    port = listener.getsockname()[1]
    base = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    names = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")} if is_loopback(host) else set[str]()
    sign_in = SignIn(
        Principal(by, ViewerRole.READ if is_read_only else ViewerRole.OPERATE),
        on_new_link=lambda token: on_sign_in(f"{base}/sign-in?token={token}"),
    )
    app: Dashboard = Dashboard(
        store,
        sign_in=sign_in,
        hosts={*names, *hosts},
        cookie=f"leasemill_session_{port}",
        redact=(*SECRET_KEYS, *redact),
    )
    config = uvicorn.Config(
        app,
        http=guarded(Connected(affordable(MOST_CONNECTIONS))),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
        server_header=False,
        lifespan="on",
    )
    return f"{base}/sign-in?token={sign_in.new_token()}", DashboardServer(config, app)
