"""Settings that all tests share.

A random test that fails prints how to repeat it. To look longer: HYPOTHESIS_PROFILE=thorough make test
PYTEST_ARGS="--timeout=0 tests/kernel".
"""

import gc
import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]

settings.register_profile(
    "normal",
    deadline=None,
    print_blob=True,
    max_examples=50,
    stateful_step_count=40,
    suppress_health_check=SLOW_IS_FINE,
)
settings.register_profile("thorough", settings.get_profile("normal"), max_examples=1_000, stateful_step_count=100)
settings.register_profile("unshrunk", settings.get_profile("normal"), phases=[Phase.explicit, Phase.generate])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "normal"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What collecting makes stays until the end: the garbage collector need not look at it, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command that ran in this process has sent its log to a stream that is closed by now."""
    root = logging.getLogger()
    level = root.level
    yield
    for handler in root.handlers[:]:
        if type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
            root.setLevel(level)
