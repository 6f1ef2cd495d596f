"""The `leasemill` command.

One module per subcommand, named in COMMANDS and imported only when that subcommand runs: `leasemill --help`
must answer before anybody notices. Nothing here may import a store, a worker or the server.
"""

import click

from leasemill.cli.lazy import LazyCommand, LazyGroup

COMMANDS = {
    "wal": LazyCommand("leasemill.cli.wal:wal", "Look at the log of a file: store."),
    "version": LazyCommand("leasemill.cli.version:version", "Print the version."),
}


@click.group(
    cls=LazyGroup,
    lazy_commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
def main() -> None:
    """Durable jobs for Python: held by a lease, fenced by a token, applied once."""
