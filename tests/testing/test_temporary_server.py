"""A temporary PostgreSQL that cannot be started says why, and what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leasemill.testing.postgres import NoServer, PostgresServer


def test_programs_that_may_not_be_run_are_named(tmp_path: Path) -> None:
    for name in ("initdb", "postgres"):
        (tmp_path / name).touch(mode=0o600)
    remedy = "install Leasemill where every user can read it" if os.geteuid() == 0 else "permission denied"
    with pytest.raises(NoServer, match=remedy) as raised:
        PostgresServer(binaries=tmp_path)
    assert f"{tmp_path}/initdb" in str(raised.value)
