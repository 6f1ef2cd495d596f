"""The `leasemill` command.

One module per subcommand, named in COMMANDS and imported only when that subcommand runs: `leasemill --help`
must be quick. Nothing here may import a store or a worker.
"""

import click

from leasemill import __version__
from leasemill.cli.lazy_group import DEBUG_VARIABLE, LazyCommand, LazyGroup

COMMANDS = {
    "actions": LazyCommand("leasemill.cli.actions:actions", "List what operators did, and why."),
    "cron": LazyCommand("leasemill.cli.cron:cron", "List, show, fire, pause and backfill schedules."),
    "dashboard": LazyCommand("leasemill.cli.dashboard:dashboard", "Serve pages for operators."),
    "db": LazyCommand("leasemill.cli.db:db", "Create, migrate and check the tables of a postgresql:// store."),
    "demo": LazyCommand("leasemill.cli.demo:demo", "Watch jobs survive a killed and a stopped worker."),
    "enqueue": LazyCommand("leasemill.cli.enqueue:enqueue", "Enqueue a job."),
    "groups": LazyCommand("leasemill.cli.groups:groups", "List, show, seal, cancel and redrive groups."),
    "health": LazyCommand("leasemill.cli.health:health", "Check that workers are running; for probes."),
    "jobs": LazyCommand("leasemill.cli.jobs:jobs", "List, show, explain, cancel, redrive and purge jobs."),
    "keys": LazyCommand("leasemill.cli.keys:keys", "Create, list and revoke keys for leasemill serve."),
    "lanes": LazyCommand("leasemill.cli.lanes:lanes", "List, show and unblock lanes."),
    "limits": LazyCommand("leasemill.cli.limits:limits", "List, show, set and clear limits."),
    "queues": LazyCommand("leasemill.cli.queues:queues", "List, pause, resume and configure queues."),
    "serve": LazyCommand("leasemill.cli.serve:serve", "Serve a store over HTTP."),
    "stats": LazyCommand("leasemill.cli.stats:stats", "Count jobs by queue and state."),
    "top": LazyCommand("leasemill.cli.top:top", "Watch queues, workers, running jobs and failures."),
    "version": LazyCommand("leasemill.cli.version:version", "Print the version."),
    "wal": LazyCommand("leasemill.cli.wal:wal", "Inspect the log of a file: store."),
    "worker": LazyCommand("leasemill.cli.worker:worker", "Run a worker."),
    "workers": LazyCommand("leasemill.cli.workers:workers", "List workers; quiet, resume and stop them."),
}


@click.group(
    cls=LazyGroup,
    lazy_commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="leasemill %(version)s")
@click.option(
    "--debug", is_flag=True, envvar=DEBUG_VARIABLE, help=f"Show tracebacks of errors; also {DEBUG_VARIABLE}=1."
)
def main(debug: bool) -> None:
    """Durable background jobs for Python.

    The store is the one that --url names, then the app's own (for commands that load an app), then LEASEMILL_URL, then
    file:./.leasemill.

    \b
    Exit codes:
      0  success
      1  failure: refused, not found, unhealthy, your module cannot be imported, or its lifespan fails
      2  usage error: a wrong option, argument or setting
      3  the store is unavailable: try again
      4  the store is damaged or of an unknown format: inspect it first
      5  worker: every slot is stuck in a handler that never returned; restart it
      6  worker: it did not stop within its shutdown timeout
      7  worker: every process kept dying soon after it was started
      70 an unexpected error: run it again with --debug
    """
