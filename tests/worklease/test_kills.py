"""The partitioned stream survives its orchestrator: a short run; fifty kills are in chaos.py."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from leasemill.testing.rules import rule
from tests.worklease.kills import Scene

KILLS = 5


@rule("N12", "E1")
def test_every_offset_is_processed_once_and_in_order_whatever_is_killed(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    outcome = Scene(tmp_path, f"file:{tmp_path / 'offsets'}", seed).run(KILLS)
    assert outcome.holds, f"seed {seed}: {outcome.audit}"
    assert outcome.kills_at_work > 0


DAMAGE = {
    "update balances set cents = cents + 1 where account = 'account-0'": "the balances are not the sums",
    "delete from booked where number = 3": "are booked, or not in order",
    "update booked set number = -1 where partition = 'payments-0' and record = 3": "are booked, or not in order",
    "delete from tries": "was given up early",
}


def test_the_audit_finds_what_is_wrong(tmp_path: Path) -> None:
    scene = Scene(tmp_path, f"file:{tmp_path / 'offsets'}", 1)
    assert scene.run(kills=0).holds
    for statement, finding in DAMAGE.items():
        shutil.copy(tmp_path / "ledger.db", tmp_path / "kept.db")
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as ledger, ledger:
            ledger.execute(statement)
        outcome = scene.audit()
        assert (outcome.holds, finding in outcome.audit) == (False, True), statement
        shutil.copy(tmp_path / "kept.db", tmp_path / "ledger.db")
