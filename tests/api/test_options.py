"""What one enqueue overrides, what an app sets for all its jobs, and which errors are retried."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from leasemill import App, Invalid, JobType, Retry
from leasemill.api.retry import RETRIES
from leasemill.kernel.model import SECOND, Policy
from leasemill.kernel.transitions.retry import DEFAULTS, backoff_us, settle


@pytest.fixture
def app() -> App:
    return App("memory:")


@pytest.fixture
def noop(app: App) -> JobType[[], None]:
    @app.job(retry=2)
    def noop() -> None: ...

    return noop


# One enqueue ----------------------------------------------------------------------------------------------------


def test_queue_and_policy_of_one_job(noop: JobType[[], None]) -> None:
    spec = noop.options(queue="slow", retry=5, lease="heavy", timeout=timedelta(minutes=5)).call().spec
    assert (spec.queue, spec.policy) == ("slow", Policy(5, 60 * SECOND, 300 * SECOND))
    assert noop.call().spec.policy is None
    assert noop.call().spec.queue == "default"


def test_options_add_up(noop: JobType[[], None]) -> None:
    chosen = noop.options(retry=Retry(max=5, base=1)).options(timeout=9).options(retry=6)
    assert chosen.call().spec.policy == Policy(6, None, 9 * SECOND, None, SECOND)
    assert chosen.options(retry=None, queue=None).chosen == chosen.chosen, "None is left out"


def test_hooks_see_the_queue_that_a_job_goes_to(app: App, noop: JobType[[], None]) -> None:
    seen: list[str] = []
    app.on_enqueue(lambda job: seen.append(job.queue))
    noop.options(queue="slow").enqueue()
    noop.enqueue()
    assert seen == ["slow", "default"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"queue": ""}, "queue"),
        ({"retry": "often"}, "retry 'often' is not one of default, patient"),
        ({"retry": -1}, "retries must be from 0 to 1000"),
        ({"retry": True}, "write a whole number of retries"),
        ({"lease": "long"}, "lease 'long' is not one of"),
        ({"timeout": 0}, "timeout is 0 s; it must be more than 0 s"),
        ({"retry": Retry(on=KeyError)}, r"do not travel with a job; write them in @app\.job"),
        ({"retry": Retry(never_on=KeyError)}, "do not travel with a job"),
        ({"when": 1}, "there is no option 'when': use delay, run_at"),
    ],
)
def test_options_that_cannot_be_are_refused(noop: JobType[[], None], options: Any, sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        noop.options(**options)


# All jobs of an app ---------------------------------------------------------------------------------------------


def test_an_app_sets_what_its_jobs_leave_out() -> None:
    app = App("memory:", queue="shop", retry=Retry(max=9, base=2, never_on=KeyError), lease="heavy", timeout=600)

    @app.job
    def plain() -> None: ...

    @app.job(queue="own", retry=Retry(max=1, cap=50), lease=10, timeout=20)
    def own() -> None: ...

    @app.job(retry=4)
    def counted() -> None: ...

    assert plain.queue == "shop"
    assert plain.policy == Policy(9, 60 * SECOND, 600 * SECOND, None, 2 * SECOND)
    assert own.queue == "own"
    assert own.policy == Policy(1, 10 * SECOND, 20 * SECOND, None, 2 * SECOND, 50 * SECOND)
    assert counted.policy.max_retries == 4
    assert not any(job.retry.allows(KeyError()) for job in (plain, own, counted))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"retry": "often"}, "is not one of default, patient; write one of them, a number, or"),
        ({"lease": 0}, "lease is 0 s"),
        ({"timeout": "long"}, "timeout is 'long'"),
        ({"queue": ""}, "queue"),
    ],
)
def test_defaults_that_cannot_be_are_refused_where_they_are_written(settings: Any, sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        App("memory:", **settings)


def test_a_base_above_the_apps_cap_is_refused() -> None:
    app = App("memory:", retry=Retry(cap=10))
    with pytest.raises(Invalid, match="base is 20 s and its cap 10 s"):
        app.job(retry=Retry(base=20, cap=None))


# Presets --------------------------------------------------------------------------------------------------------


def test_the_default_preset_is_what_is_done_by_default() -> None:
    app = App("memory:", retry="patient")

    @app.job(retry="default")
    def usual() -> None: ...

    assert settle(None, None, usual.policy) == DEFAULTS


def test_a_patient_job_is_retried_for_about_a_day() -> None:
    terms = settle(None, None, RETRIES["patient"].policy())
    waits = [backoff_us(terms, retries, 0.5) / SECOND for retries in range(terms.max_retries)]
    assert 23 * 3600 < sum(waits) < 25 * 3600
    assert sum(waits[:8]) < 180, "at first it is tried again within minutes"


# Which errors ---------------------------------------------------------------------------------------------------


class Special(OSError):
    pass


GROUP = ExceptionGroup("two", [OSError(), ExceptionGroup("inner", [Special()])])


@pytest.mark.parametrize(
    ("retry", "error", "is_retried"),
    [
        (Retry(), ValueError(), True),
        (Retry(), SystemExit(), True),
        (Retry(on=OSError), OSError(), True),
        (Retry(on=OSError), Special(), True),
        (Retry(on=(OSError, KeyError)), KeyError(), True),
        (Retry(on=OSError), ValueError(), False),
        (Retry(never_on=OSError), Special(), False),
        (Retry(never_on=(OSError,)), ValueError(), True),
        (Retry(never_on=()), ValueError(), True),
        (Retry(on=OSError, never_on=Special), OSError(), True),
        (Retry(on=OSError, never_on=Special), Special(), False),
        (Retry(on=Special, never_on=OSError), Special(), False),
        (Retry(on=OSError), GROUP, True),
        (Retry(on=Special), GROUP, False),
        (Retry(never_on=Special), GROUP, False),
        (Retry(never_on=KeyError), GROUP, True),
        (Retry(on=ExceptionGroup), GROUP, True),
    ],
)
def test_errors_are_retried_by_their_type(retry: Retry, error: BaseException, is_retried: bool) -> None:
    assert retry.allows(error) is is_retried


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"on": ()}, "names no error; leave it out to retry all, or write retry=0"),
        ({"on": [OSError]}, "is not a class of errors; write one, or a tuple of them"),
        ({"never_on": (OSError, "KeyError")}, "'KeyError' is not a class of errors"),
        ({"never_on": int}, "is not a class of errors"),
        ({"on": OSError()}, "is not a class of errors"),
    ],
)
def test_what_is_not_a_class_of_errors_is_refused(wrong: Any, sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        Retry(**wrong)
