"""What commands open: the store that a URL names, the app that a module holds."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import click

from leasemill.app import DEFAULT_URL, URL_VARIABLE, App
from leasemill.errors import NotFound
from leasemill.store.base import FullStore, open_store

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
        from leasemill.store.wal.url import parse_folder_url  # noqa: PLC0415  (only for folders)

        folder = parse_folder_url(url)[0]
        if not (folder / "manifest").is_file():
            raise NotFound(f"there are no jobs in {folder} yet: name another store with --url, or enqueue one")
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


def load_app(target: str) -> App:
    """The app that `module:name` names, imported as from the current folder."""
    module_name, separator, attribute = target.partition(":")
    if not separator or not module_name or not attribute:
        raise click.UsageError(f"{target!r} names no app: write MODULE:APP, for example tasks:app")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise click.UsageError(
            f"there is no module {module_name!r} here: run the command where it can be imported"
        ) from None
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        raise click.UsageError(f"{target!r} is {'missing' if app is None else 'no leasemill.App'}; name the App object")
    return app
