"""Puts a worker process's wall clock wrong, by the seconds in its environment."""

import os
import time

SKEW_S = float(os.environ["LEASEMILL_TEST_SKEW_S"])
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + SKEW_S
time.time_ns = lambda: _time_ns() + int(SKEW_S * 1e9)
