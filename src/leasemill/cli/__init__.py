"""The `leasemill` command.

One module per subcommand, named in COMMANDS and imported only when that subcommand runs: `leasemill --help`
must answer before anybody notices. Nothing here may import a store, a worker or the server.
"""

import click

from leasemill.cli.lazy import LazyCommand, LazyGroup

COMMANDS = {
    "actions": LazyCommand("leasemill.cli.actions:actions", "List what operators did, and why."),
    "db": LazyCommand("leasemill.cli.db:db", "Make and check the tables of a postgresql:// store."),
    "demo": LazyCommand("leasemill.cli.demo:demo", "See jobs survive a killed and a stopped worker."),
    "enqueue": LazyCommand("leasemill.cli.enqueue:enqueue", "Enqueue a job."),
    "health": LazyCommand("leasemill.cli.health:health", "Tell whether workers are at work; for probes."),
    "jobs": LazyCommand("leasemill.cli.jobs:jobs", "Look at jobs, explain them, cancel, redrive and purge them."),
    "lanes": LazyCommand("leasemill.cli.lanes:lanes", "List and show lanes, and unblock them."),
    "queues": LazyCommand("leasemill.cli.queues:queues", "List, pause, resume and set queues."),
    "stats": LazyCommand("leasemill.cli.stats:stats", "Count jobs by queue and state."),
    "version": LazyCommand("leasemill.cli.version:version", "Print the version."),
    "wal": LazyCommand("leasemill.cli.wal:wal", "Look at the log of a file: store."),
    "worker": LazyCommand("leasemill.cli.worker:worker", "Run a worker."),
    "workers": LazyCommand("leasemill.cli.workers:workers", "List the workers that are at work."),
}


@click.group(
    cls=LazyGroup,
    lazy_commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
def main() -> None:
    """Durable jobs for Python: held by a lease, fenced by a token, applied once.

    The store is named by --url, else by LEASEMILL_URL, else it is file:./.leasemill.

    \b
    Exit codes:
      0  it worked
      1  it did not: refused, not found, unhealthy, damaged
      2  the call was wrong
      3  the store could not be reached: try again
      4  the store is damaged or of another format: look before going on
      6  worker: it did not stop within its shutdown timeout and ended itself
    """
