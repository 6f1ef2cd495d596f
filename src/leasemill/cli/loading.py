"""The app that a command names as MODULE:APP."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import click

from leasemill.app import App


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
