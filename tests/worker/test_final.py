"""`ctx.is_final(error)` answers as the worker does when the handler raises this error."""

from __future__ import annotations

import pytest

from leasemill import App, Context, Fail, JobState, Release, Retry, RetryAfter
from tests.worker.support import drained

pytestmark = pytest.mark.usefixtures("clock")

CASES = {
    "retried": (ValueError("no"), Retry(max=1), False),
    "never retried": (KeyError("no"), Retry(max=1, never_on=KeyError), True),
    "the last attempt": (ValueError("no"), Retry(max=0), True),
    "on purpose": (Fail("no"), Retry(max=1), True),
    "put off": (RetryAfter(60), Retry(max=1, on=OSError), False),
    "put off for the last time": (RetryAfter(60), Retry(max=0), True),
    "given back": (Release(60), Retry(max=0), False),
}


@pytest.mark.parametrize("which", CASES)
async def test_an_error_is_final_if_the_job_fails_with_it(app: App, which: str) -> None:
    error, retry, expected = CASES[which]
    answers: list[bool] = []

    @app.job(retry=retry)
    def run(ctx: Context) -> None:
        answers.append(ctx.is_final(error))
        raise error

    handle = run.enqueue()
    await drained(app)
    assert answers == [expected]
    assert (handle.status() is JobState.FAILED) == expected


async def test_after_the_commit_and_after_a_loss_no_error_is_final(app: App) -> None:
    answers: list[bool] = []

    @app.job(retry=0)
    def run(ctx: Context, loses: bool) -> None:
        if loses:
            ctx.lost.set("shows a loss")
        else:
            with ctx.commit():
                pass
        answers.append(ctx.is_final(ValueError("no")))

    run.enqueue(False)
    await drained(app)
    run.enqueue(True)
    await drained(app)
    assert answers == [False, False]
