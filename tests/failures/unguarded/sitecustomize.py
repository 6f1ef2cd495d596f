"""Leasemill without one of its guards, for every interpreter that has this folder on its path: LEASEMILL_TEST_WITHOUT
names the mutation of tests/kernel/mutations.py that takes it out.

Python imports this module by its name when it starts. It is how the catalogue's tests show a failure in real processes.
"""

import os

import pytest

from tests.failures.support import without

without(pytest.MonkeyPatch(), os.environ["LEASEMILL_TEST_WITHOUT"])
