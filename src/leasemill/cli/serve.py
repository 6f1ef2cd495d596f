"""`leasemill serve`: a store over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from leasemill.cli.store_options import redact_option, url_option
from leasemill.errors import Invalid
from leasemill.server.address import bound_socket, listen_address
from leasemill.store.base import Store
from leasemill.store.url import hidden_password

if TYPE_CHECKING:  # the extra may not be installed
    from leasemill.dashboard import Dashboard

log = logging.getLogger("leasemill.server")

DEFAULT_LISTEN = "127.0.0.1:7411"
DEFAULT_RATE = 5_000.0
DEFAULT_CONNECTIONS = 4_000
FILE = click.Path(path_type=Path)


@click.command()
@url_option
@click.option("--listen", default=DEFAULT_LISTEN, show_default=True, metavar="HOST:PORT", help="Where to listen.")
@click.option(
    "--stop-timeout",
    default=10.0,
    show_default=True,
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="How long requests may take to finish after a signal.",
)
@click.option("--cert", type=FILE, help="Serve HTTPS with this certificate chain, in PEM.")
@click.option("--key", type=FILE, help="The private key of --cert, in PEM. Default: in the same file.")
@click.option(
    "--dashboard", "has_dashboard", is_flag=True, help="Serve the dashboard at /dashboard, for keys that may read."
)
@redact_option
@click.option(
    "--require-keys", is_flag=True, help="Require a key on 127.0.0.1 too; other addresses always require one."
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Accept this name in the Host header; may be repeated. Default: on 127.0.0.1 this machine's names, else any.",
)
@click.option(
    "--rate",
    default=DEFAULT_RATE,
    show_default=True,
    type=click.FloatRange(1),
    metavar="REQUESTS",
    help="Requests per second allowed for each key, in bursts of up to twice as many.",
)
@click.option(
    "--connections",
    default=DEFAULT_CONNECTIONS,
    show_default=True,
    type=click.IntRange(10),
    help="The maximum number of open connections; each waiting call holds one.",
)
@click.option(
    "--longest-wait",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0, 60),
    metavar="SECONDS",
    help="The longest time a call waits; keep it below the timeout of a proxy in between.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How lines are written to standard error: text, or a JSON object per line.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="The lowest level that is logged.",
)
def serve(
    url: str,
    listen: str,
    stop_timeout: float,
    cert: Path | None,
    key: Path | None,
    has_dashboard: bool,
    redact: tuple[str, ...],
    require_keys: bool,
    allowed_hosts: tuple[str, ...],
    rate: float,
    connections: int,
    longest_wait: float,
    log_format: Literal["text", "json"],
    log_level: str,
) -> None:
    """Serve a store over HTTP until a signal stops it.

    Workers, producers and the command line use it with --url http://HOST:PORT; programs in other languages send JSON to
    POST /v1/…, which /openapi.json describes.

    On 127.0.0.1 it accepts requests from this machine without a key. On another address it starts only if the store has
    a key: create one with `leasemill keys create`.

    It recovers expired leases by itself, every few seconds, whether or not a worker runs.

    After SIGTERM or SIGINT, calls that wait return and requests in progress finish. After a second signal it ends at
    once.
    """
    from leasemill.api import logs
    from leasemill.store.factory import open_store

    try:
        from leasemill.server.limits import ServerLimits
        from leasemill.server.pages import server_app
        from leasemill.server.security import secured
        from leasemill.server.uvicorn_server import new_server
    except ModuleNotFoundError as error:
        if error.name not in {"httptools", "starlette", "uvicorn"}:
            raise
        raise Invalid(
            "leasemill serve needs Starlette, uvicorn and httptools: pip install 'leasemill[server]'"
        ) from None

    if redact and not has_dashboard:
        raise Invalid("--redact needs --dashboard: it hides values on its pages")
    logs.configure_logging(log_format, log_level.upper())
    if url.startswith(("http:", "https:")):
        raise Invalid(
            f"{hidden_password(url)} is a server already: serve its store, file: or postgresql://, with --url"
        )
    host, port = listen_address(listen)
    limits = ServerLimits(requests_per_s=rate, burst=round(2 * rate))
    with ExitStack() as opened:
        store = opened.enter_context(open_store(url))
        security = secured(
            store,
            host,
            requires_keys=require_keys,
            allowed_hosts=allowed_hosts,
            certificate=cert,
            certificate_key=key,
            limits=limits,
            connections=connections,
        )
        listening = opened.enter_context(bound_socket(host, port))
        security.ring.start()
        opened.callback(security.ring.close)
        mounts, on_stop = _dashboard(store, opened, redact) if has_dashboard else ({}, lambda: None)
        app = server_app(
            store, authorizer=security.authorizer, mounts=mounts, longest_wait_s=longest_wait, on_stop=on_stop
        )
        server = new_server(app, stop_s=stop_timeout, options=security.options)
        app.reaper.start()
        opened.callback(app.reaper.stop)
        shown = f"[{host}]" if ":" in host else host
        base = f"{'http' if cert is None else 'https'}://{shown}:{listening.getsockname()[1]}"
        log.info("serving %s on %s", store.name, base)
        for path in mounts:
            log.info("dashboard on %s%s", base, path)
        server.run(sockets=[listening])
        log.info("stopped")


def _dashboard(
    store: Store, opened: ExitStack, redact: tuple[str, ...]
) -> tuple[dict[str, Dashboard], Callable[[], None]]:
    """Return what to mount, and what to call when the server begins to stop."""
    try:
        from leasemill.dashboard.mount import PATH, mounted_dashboard
    except ModuleNotFoundError as error:
        raise Invalid(f"the dashboard needs {error.name}: pip install 'leasemill[server]'") from None
    dashboard = mounted_dashboard(store, redact)
    opened.callback(dashboard.close)
    return {PATH: dashboard}, dashboard.end_streams
