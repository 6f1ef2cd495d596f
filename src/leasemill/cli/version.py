"""`leasemill version`: which Leasemill this is, for people and for scripts."""

import json
import platform

import click

from leasemill import __version__


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def version(as_json: bool) -> None:
    """Print the version."""
    if as_json:
        click.echo(json.dumps({"leasemill": __version__, "python": platform.python_version()}))
    else:
        click.echo(f"leasemill {__version__}")
