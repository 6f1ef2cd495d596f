"""`make fuzz-http`: Schemathesis sends requests made from the reference, right and wrong ones, and checks every answer.

`python -m tests.server.fuzzing --examples 80`. All its checks are on: no server error, no status, content type, header
or body that the reference does not describe, nothing accepted that violates it. A request that fits the schema may be
refused with 422, where fields exclude each other or a text is not printable: a schema cannot say that, and the
reference documents the status.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import click
import httpx

from leasemill.demo.server import ServerProcess
from tests.fire.chaos import settled_seed

IMPATIENT: Final = ("--longest-wait", "0.05", "--log-level", "error")
"""A call may ask to be kept waiting for up to a minute, longer than Schemathesis waits for any answer. That such calls
are answered in time is tested elsewhere."""
PATIENT: Final = ("--request-timeout", "60")
"""On a busy machine."""
CONFIG: Final = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "403", "404", "409", "422"]
"""


def fuzz(url: str, folder: Path, *options: str) -> tuple[int, str]:
    """Schemathesis against a server; its exit code and what it printed."""
    schema, config = folder / "openapi.json", folder / "schemathesis.toml"
    schema.write_text(httpx.get(f"{url}/openapi.json").text)
    config.write_text(CONFIG)
    program = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run", str(schema)]
    ran = subprocess.run(
        [*program, "--url", url, "--checks", "all", "--no-color", "--continue-on-failure", *PATIENT, *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    return ran.returncode, ran.stdout + ran.stderr


def sent(output: str) -> int:
    """How many requests there were."""
    found = re.search(r"(\d+) generated", output)
    return int(found[1]) if found else 0


@click.command()
@click.option("--store", "store_url", default=None, help="What the server serves. Default: a temporary folder.")
@click.option("--examples", default=80, show_default=True, help="The most random requests for each command.")
@click.option("--least", default=10_000, show_default=True, help="Fail if fewer requests were sent.")
@click.option("--seed", type=int, default=None)
def main(store_url: str | None, examples: int, least: int, seed: int | None) -> None:
    seed = settled_seed(seed)
    with tempfile.TemporaryDirectory(prefix="leasemill-fuzz-") as name:
        folder = Path(name)
        with ServerProcess(store_url or f"file:{folder / 'jobs'}", folder / "server.log", *IMPATIENT) as served:
            phases = ("--phases", "coverage,fuzzing,stateful", "--max-examples", str(examples))
            code, output = fuzz(served.url, folder, *phases, "--seed", str(seed))
            errors = served.log()
    click.echo(output[-20_000:])
    click.echo(f"seed {seed}: {sent(output):,} requests; the server logged {len(errors.splitlines())} errors")
    click.echo(errors[-5_000:])
    sys.exit(code or bool(errors) or sent(output) < least)


if __name__ == "__main__":
    main()
