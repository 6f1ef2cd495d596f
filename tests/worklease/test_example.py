"""The partitioned stream, killed where it hurts: after the booking, before it is reported."""

from __future__ import annotations

import importlib.util
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from leasemill import WorkLease
from leasemill.store.url import URL_VARIABLE
from tests.worklease.kills import EXAMPLE


class Killed(BaseException):
    """Nothing after this is run."""


@pytest.fixture
def payments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(URL_VARIABLE, "file:./offsets")
    spec = importlib.util.spec_from_file_location("example_payments", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.make(100)
    yield module
    del sys.modules[spec.name]


def die_before_succeed(payments: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """One life, in which every partition books a payment and dies before it reports that."""

    def killed(*_arguments: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(WorkLease, "succeed", killed)
        with pytest.raises(Killed):
            payments.consume(0.0)


def book_without_guard(ledger: sqlite3.Connection, _partition: str, _offset: int, payment: Any) -> None:
    if payment.cents >= 0:
        ledger.execute(
            "insert into balances values (?, ?) on conflict do update set cents = cents + excluded.cents",
            (payment.account, payment.cents),
        )


def test_without_the_guard_a_payment_is_booked_twice(
    payments: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(payments, "book", book_without_guard)
    die_before_succeed(payments, monkeypatch)
    payments.consume(0.0)
    assert payments.audit() == 1
    assert "the balances are not the sums of the payments" in capsys.readouterr().out


def test_with_the_guard_it_is_tried_twice_and_booked_once(
    payments: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    die_before_succeed(payments, monkeypatch)
    payments.consume(0.0)
    assert payments.audit() == 0
    output = capsys.readouterr().out
    assert "99 payments booked, 106 tries" in output
