"""Leasemill without some of its guards, for every interpreter that has this folder on its path: LEASEMILL_TEST_WITHOUT
names the mutations of tests/kernel/mutations.py that take them out, a line each.

Python imports this module by its name when it starts. It is how the catalogue's tests show a failure in real processes.
"""

import os

import pytest

from tests.failures.support import without

for name in os.environ["LEASEMILL_TEST_WITHOUT"].splitlines():
    without(pytest.MonkeyPatch(), name)
