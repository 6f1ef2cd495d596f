"""What is kept of an exception: itself, its causes, and where they were raised."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from leasemill import App, Fail
from leasemill.operator.fingerprint import normalised
from leasemill.testing.drain import drain, in_memory
from leasemill.worker.error_text import ERROR_BYTES, error_text


def raised(function: object) -> BaseException:
    assert callable(function)
    try:
        function()
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


def divide(by: int) -> float:
    return 1 / by


def wrapping() -> None:
    try:
        divide(0)
    except ZeroDivisionError as error:
        raise ValueError("could not charge order 17") from error


def handling() -> None:
    try:
        divide(0)
    except ZeroDivisionError:
        raise KeyError("rate")  # noqa: B904


def suppressing() -> None:
    try:
        divide(0)
    except ZeroDivisionError:
        raise ValueError("on purpose") from None


def test_the_cause_is_in_the_first_line_and_both_have_their_frames() -> None:
    first, *rest = error_text(raised(wrapping)).splitlines()
    assert first == "ValueError: could not charge order 17 (caused by ZeroDivisionError: division by zero)"
    body = "\n".join(rest)
    outer, inner = body.split("caused by ZeroDivisionError: division by zero\n")
    assert "in wrapping" in outer
    assert "in divide\n    return 1 / by" in inner


def test_what_was_being_handled_is_named_and_what_was_suppressed_is_not() -> None:
    assert error_text(raised(handling)).splitlines()[0] == (
        "KeyError: 'rate' (while handling ZeroDivisionError: division by zero)"
    )
    assert "ZeroDivisionError" not in error_text(raised(suppressing))


def test_the_exceptions_of_a_group_are_named() -> None:
    async def fails(text: str) -> None:
        raise ConnectionError(text)

    async def together() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(fails(f"host {number} is down"))

    text = error_text(raised(lambda: asyncio.run(together())))
    assert text.splitlines()[0].startswith(
        "ExceptionGroup: unhandled errors in a TaskGroup (5 sub-exceptions) "
        "(sub-exception ConnectionError: host 0 is down; sub-exception ConnectionError: host 1 is down; "
    )
    assert "in fails" in text


def test_a_long_chain_keeps_its_beginning_and_its_root_within_the_limit() -> None:
    def chain(depth: int) -> None:
        if depth == 0:
            raise KeyError("the root")
        try:
            chain(depth - 1)
        except Exception as error:
            raise ValueError(f"level {depth} " + "é" * 3_000) from error

    text = error_text(raised(lambda: chain(60)))
    assert len(text.encode()) <= ERROR_BYTES
    assert text.startswith("ValueError: level 60 ")
    assert "caused by ValueError: level 59 " in text
    assert "caused by KeyError: 'the root'" in text.splitlines()[0]
    assert 'raise KeyError("the root")' in text, "the deepest frame is where it happened"


def test_a_deep_recursion_keeps_its_deepest_frames() -> None:
    def down(depth: int) -> float:
        return down(depth - 1) if depth else divide(0)

    text = error_text(raised(lambda: down(200)))
    assert text.endswith("return 1 / by") or "return 1 / by" in text.splitlines()[-2]
    assert text.count("in down") < 10


def test_exceptions_that_cause_each_other_end() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert error_text(first).splitlines()[0] == "ValueError: first (caused by ValueError: second)"


def test_notes_and_further_lines_of_a_message_are_recorded() -> None:
    error = ValueError("first line\nsecond line")
    error.add_note("a hint")
    assert error_text(error) == "ValueError: first line\nsecond line\na hint"


def test_failures_of_one_cause_are_grouped_and_of_another_cause_are_not() -> None:
    def failing(order: int, cause: Exception) -> str:
        def fails() -> None:
            raise ValueError(f"could not charge order {order}") from cause

        return normalised(error_text(raised(fails)))

    down = [failing(number, ConnectionError(f"no route to 10.0.0.{number}")) for number in range(3)]
    assert len(set(down)) == 1
    assert failing(1, KeyError("rate")) not in down


def test_a_failure_for_good_keeps_its_cause_and_the_log_has_the_traceback(caplog: pytest.LogCaptureFixture) -> None:
    app = App("memory:")

    @app.job(retry=1)
    def wraps() -> None:
        wrapping()

    @app.job
    async def gives_up() -> None:
        try:
            divide(0)
        except ZeroDivisionError as error:
            raise Fail("cannot be charged") from error

    @app.job
    def refuses() -> None:
        raise Fail("no such account")

    with in_memory(app) as clock:
        handles = [wraps.enqueue(), gives_up.enqueue(), refuses.enqueue()]
        drain(app, clock)
        errors = [(handle.record().executions[-1].error or "").splitlines()[0] for handle in handles]
    assert errors == [
        "ValueError: could not charge order 17 (caused by ZeroDivisionError: division by zero)",
        "Fail: cannot be charged (caused by ZeroDivisionError: division by zero)",
        "Fail: no such account",
    ]
    lines = {record.message: record for record in caplog.records if record.levelno >= logging.WARNING}
    kinds = {
        re.sub(r"after [\d.]+ m?s", "after T", message): record.exc_info and type(record.exc_info[1]).__name__
        for message, record in lines.items()
    }
    assert kinds == {
        f"job failed after T and will be retried (retry 1 of 1): {errors[0]}": "ValueError",
        f"job failed for good after T: {errors[0]}": "ValueError",
        f"job failed for good after T: {errors[1]}": "Fail",
        f"job failed for good after T: {errors[2]}": None,
    }
    traceback = next(record for message, record in lines.items() if "ValueError" in message).exc_text or ""
    assert "ZeroDivisionError: division by zero" in traceback
    assert "outcome.py" not in traceback
