"""`leasemill serve`: a store over HTTP."""

from __future__ import annotations

import logging
from typing import Literal

import click

from leasemill.cli.opening import url_option
from leasemill.errors import Refused

log = logging.getLogger("leasemill.server")

DEFAULT_LISTEN = "127.0.0.1:7411"


@click.command()
@url_option
@click.option("--listen", default=DEFAULT_LISTEN, show_default=True, metavar="HOST:PORT", help="Where to listen.")
@click.option(
    "--stop-timeout",
    default=10.0,
    show_default=True,
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="How long requests may take to end after a signal.",
)
@click.option(
    "--longest-wait",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0, 60),
    metavar="SECONDS",
    help="The longest a call is kept waiting: less than a proxy in between allows.",
)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def serve(
    url: str,
    listen: str,
    stop_timeout: float,
    longest_wait: float,
    log_format: Literal["text", "json"],
    log_level: str,
) -> None:
    """Serve a store over HTTP until a signal stops it.

    Workers, producers and the command line use it with --url http://HOST:PORT; programs in other languages send JSON to
    POST /v1/…, which /openapi.json describes.

    After SIGTERM or SIGINT whoever waits is answered, and requests under way are finished. After a second signal it
    ends at once.
    """
    from leasemill.api import logs  # noqa: PLC0415  (--help must answer before these are imported)
    from leasemill.store.opening import open_store  # noqa: PLC0415

    try:
        from leasemill.server.pages import server_app  # noqa: PLC0415
        from leasemill.server.serving import bound_socket, new_server, parse_address  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name not in {"starlette", "uvicorn"}:
            raise
        raise Refused("serving needs Starlette and uvicorn: pip install 'leasemill[server]'") from None

    logs.configure_logging(log_format, log_level.upper())
    host, port = parse_address(listen)
    with open_store(url) as store, bound_socket(host, port) as listening:
        server = new_server(server_app(store, longest_wait_s=longest_wait), stop_s=stop_timeout)
        shown = f"[{host}]" if ":" in host else host
        log.info("serving %s on http://%s:%d", store.name, shown, listening.getsockname()[1])
        server.run(sockets=[listening])
        log.info("stopped")
