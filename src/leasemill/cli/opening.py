"""The store that a command opens, and who acts on it.

One order for all commands: `--url`, then the URL or store the app's code names (where a command loads an app), then
LEASEMILL_URL, then the folder `.leasemill` in the working directory.
"""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager

import click

from leasemill.errors import NotFound, Refused
from leasemill.store.base import Store
from leasemill.store.opening import open_store
from leasemill.store.url import DEFAULT_URL, URL_VARIABLE, choose_url

url_option = click.option(
    "--url",
    callback=lambda _context, _parameter, url: choose_url(url),
    help=f"The store. Default: {URL_VARIABLE}, then {DEFAULT_URL}.",
)
app_url_option = click.option(
    "--url", help=f"The store. Default: the app's own URL, then {URL_VARIABLE}, then {DEFAULT_URL}."
)
reason_option = click.option("--reason", required=True, help="Why you do this; kept in the list of actions.")


def operator_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


by_option = click.option("--by", default=operator_name, help="Who does this. Default: the name of the current user.")


@contextmanager
def opened(url: str) -> Iterator[Store]:
    """A store that exists: looking must not create one."""
    refuse_memory(url)
    if url.startswith("file:"):
        from leasemill.store.wal.disk import holds_log  # noqa: PLC0415  (only for folders)
        from leasemill.store.wal.options import parse_folder_url  # noqa: PLC0415

        folder = parse_folder_url(url)[0]
        if not holds_log(folder):
            raise NotFound(f"there are no jobs in {folder} yet: enqueue one, or name another store with --url")
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


def refuse_memory(url: str) -> None:
    """A command that ends at once would lose what it wrote, and can see nothing of another process."""
    if url.startswith("memory:"):
        raise Refused(
            "a memory: store lives inside one process and is gone when this command ends: "
            "name another store with --url, for example file:./.leasemill"
        )
