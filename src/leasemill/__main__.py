"""`python -m leasemill` is the command `leasemill`."""

from leasemill.cli import main

main(prog_name="leasemill")
