"""The store that a command opens, and who acts on it."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager

import click

from leasemill.errors import NotFound
from leasemill.store.base import DEFAULT_URL, URL_VARIABLE, FullStore, open_store

url_option = click.option(
    "--url", envvar=URL_VARIABLE, default=DEFAULT_URL, show_default=True, help=f"The store; also {URL_VARIABLE}."
)
reason_option = click.option("--reason", required=True, help="Why; kept with the act.")


def operator_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


by_option = click.option("--by", default=operator_name, help="Who; the user of this system unless told.")


@contextmanager
def opened(url: str) -> Iterator[FullStore]:
    """A store that exists: looking must not make one."""
    if url.startswith("file:"):
        from leasemill.store.wal.options import parse_folder_url  # noqa: PLC0415  (only for folders)

        folder = parse_folder_url(url)[0]
        if not (folder / "manifest").is_file():
            raise NotFound(f"there are no jobs in {folder} yet: name another store with --url, or enqueue one")
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()
