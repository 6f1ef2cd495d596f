"""`leasemill` with a server that gives up on slow clients after seconds: for tests that wait until it does."""

from __future__ import annotations

from leasemill.server import authorizer, protocol

vars(authorizer).update(BODY_S=3.0)  # before it becomes a default of ServerLimits
vars(protocol).update(HEAD_S=2.0, STUCK_S=3.0)

from leasemill.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
