"""Settings that all tests share.

A random test that fails prints how to repeat it. To look longer: HYPOTHESIS_PROFILE=thorough make test
PYTEST_ARGS="--timeout=0 tests/kernel".
"""

import os

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
