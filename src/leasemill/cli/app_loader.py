"""The app that a command names as MODULE:APP.

What the user's module raises while it is imported is shown as the user's own traceback, without frames of ours.
"""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Final

import click

from leasemill.api.app import App
from leasemill.errors import Refused

VOWELS: Final = "AEIOUaeiou"
OUR_FRAMES: Final = (__file__, "<frozen importlib", import_module.__code__.co_filename)


def load_app(target: str, url: str | None = None) -> App:
    """Import the app that `module:name` names, as from the current folder. `url` replaces the app's own store."""
    module_name, separator, attribute = target.partition(":")
    if not separator or not module_name or not attribute:
        raise click.UsageError(f"{target!r} does not name an app: write MODULE:APP, for example tasks:app")
    _check_module_name(target, module_name, attribute)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module = _imported(module_name)
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        kind = type(app).__name__
        found = f"{module_name} has no {attribute!r}"
        if app is not None:
            found = f"{target} is {'an' if kind[0] in VOWELS else 'a'} {kind}, not a leasemill.App"
        apps = sorted(name for name, value in vars(module).items() if isinstance(value, App))
        named = " or ".join(f"{module_name}:{name}" for name in apps)
        raise click.UsageError(f"{found}. Did you mean {named}?" if apps else f"{found}: declare app = App() there")
    for included in app.include:
        _imported(included, f"App(include=[{included!r}]) of {target}: ")
    if url is not None:
        app.close()
        app.url = url
    return app


def _check_module_name(target: str, module_name: str, attribute: str) -> None:
    if "/" in module_name or module_name.endswith(".py"):
        parts = [part for part in module_name.removesuffix(".py").split("/") if part not in ("", ".")]
        raise click.UsageError(
            f"{target!r} is a path: name the module instead, for example {'.'.join(parts)}:{attribute}, "
            "and run the command in the folder where it can be imported"
        )
    if not all(module_name.split(".")):
        raise click.UsageError(f"{module_name!r} is not a module's name: write MODULE:APP, for example tasks:app")


def _imported(module_name: str, named_by: str = "") -> ModuleType:
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise click.UsageError(
                f"{named_by}there is no module {error.name!r} here: check its name, or run the command in the folder "
                "where it can be imported"
            ) from None
        missing = "" if error.name is None else error.name.partition(".")[0]
        hint = f"; install {missing!r}, or use the environment where it is installed" if missing else ""
        raise _failed(module_name, error, hint) from None
    except Exception as error:  # noqa: BLE001  (the user's module: whatever it raises is shown)
        raise _failed(module_name, error) from None


def _failed(module_name: str, error: Exception, hint: str = "") -> Refused:
    trace = error.__traceback__
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    click.echo("".join(traceback.format_exception(type(error), error, trace)), err=True)
    return Refused(f"{module_name} cannot be imported: {type(error).__name__}: {error}{hint}")


def _is_ours(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(OUR_FRAMES)
