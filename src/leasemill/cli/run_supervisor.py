"""`leasemill worker` with a supervisor, or with --reload: how its processes are started.

Each is a fresh interpreter with the options of this command, so that it imports the code as it is now.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from leasemill.cli.lazy_group import DEBUG_VARIABLE
from leasemill.cli.store_options import Embedded

if TYPE_CHECKING:
    from leasemill.worker.supervisor.metrics_aggregator import MetricsAggregator

SUPERVISORS_OWN: Final = frozenset({"worker_id", "reload", "reload_dirs"})
"""Options that are not passed to the processes."""
NOT_WITH_RELOAD: Final = {"processes": 1, "drain": False, "max_jobs": None, "max_memory": None}
"""Options that end a process or run several, with the values that do neither."""
PROGRAM: Final = ("-P", "-m", "leasemill")
"""-P: the working directory must not hide a module of Python's; a process adds it when it imports the app."""
SHUTDOWN_S: Final = 20.0


def command_of(context: click.Context) -> list[str]:
    """Return the command line that starts a process with the options of this command."""
    embedded = context.obj
    program: tuple[str, ...] = PROGRAM
    if isinstance(embedded, Embedded):
        if embedded.program is None:
            raise click.UsageError("start several processes with `manage.py leasemill worker`, not with call_command")
        program = embedded.program
    return [sys.executable, *program, "worker", *arguments_of(context)]


def arguments_of(context: click.Context) -> list[str]:
    """Return the arguments of the command line again, from what click has read."""
    arguments: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE or name in SUPERVISORS_OWN:
            continue
        value = context.params[name]
        if isinstance(parameter, click.Argument):
            arguments.append(value)
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            arguments.append(parameter.opts[0])
        else:
            arguments += [f"{parameter.opts[0]}={one}" for one in (value if parameter.multiple else [value])]
    return arguments


def supervise(context: click.Context, name: str) -> int:
    """Run the processes until they are stopped; returns the exit code."""
    from leasemill.worker.supervisor.supervisor import Processes, Supervisor

    given = context.params
    debug = context.find_root().params.get("debug")
    processes = Processes(
        name=name,
        count=given["processes"] or 1,
        command=command_of(context),
        environment={**os.environ, **({DEBUG_VARIABLE: "1"} if debug else {})},
        shutdown_s=given["shutdown_timeout"] or SHUTDOWN_S,
        drains=given["drain"],
    )
    return Supervisor(processes, aggregator(given["metrics"])).run()


def reload(context: click.Context, name: str) -> None:
    """Run one process, and restart it when its code changes, until a signal stops both.

    What is watched is the app's package or folder, in a framework the working directory, and each --reload-dir.
    """
    from leasemill.cli import reload

    given = context.params
    unfit = [option for option, harmless in NOT_WITH_RELOAD.items() if (given[option] or harmless) != harmless]
    if unfit:
        raise click.UsageError(
            f"--reload runs one process until it is stopped: leave out --{unfit[0].replace('_', '-')}"
        )
    reload.check_installed()
    is_embedded = isinstance(context.obj, Embedded)
    own = [Path.cwd()] if is_embedded else reload.folders_of(given["app"].partition(":")[0])
    if context.find_root().params.get("debug"):
        os.environ[DEBUG_VARIABLE] = "1"
    command = [*command_of(context), f"--worker-id={name}", "--reloaded"]
    reload.run_reloading(command, [*own, *map(Path, given["reload_dirs"])])


def aggregator(address: str | None) -> MetricsAggregator | None:
    """Serve the metrics of all processes at this address; None without an address."""
    from leasemill.worker.prometheus.endpoint import Endpoint, parsed_address
    from leasemill.worker.supervisor.metrics_aggregator import MetricsAggregator

    if address is None:
        return None
    found = MetricsAggregator()
    Endpoint(parsed_address(address), found.all).start()
    return found
