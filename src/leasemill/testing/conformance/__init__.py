"""The conformance suite: what every store must do, as tests. Needs pytest.

A store's test file gives the suite a harness, and nothing else:

    class TestMyStore(ConformanceSuite):
        @pytest.fixture
        def harness(self, tmp_path: Path) -> Iterator[Harness]:
            harness = DurableHarness(lambda clock: MyStore(tmp_path, clock))
            yield harness
            harness.close()

With `ReopeningHarness` in the place of `DurableHarness`, the store is closed and opened again before every step.
The suite knows no store and uses no more than the methods of `leasemill.store.base`. Each test begins with an empty
store, and names the rules it proves and the document that asked for it. It takes no store's word for numbers the
contract leaves open: sequence numbers and fences rise, but need not be dense.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{path.stem}" for path in Path(__file__).parent.glob("[a-z]*.py")))

from leasemill.testing.conformance.acquire import Acquiring
from leasemill.testing.conformance.async_calls import Awaiting
from leasemill.testing.conformance.audit import Auditing
from leasemill.testing.conformance.chains import Chaining
from leasemill.testing.conformance.claim import Claiming
from leasemill.testing.conformance.death import Dying
from leasemill.testing.conformance.debounce import Debouncing
from leasemill.testing.conformance.ends import Ending
from leasemill.testing.conformance.enqueue import Enqueuing
from leasemill.testing.conformance.execution import Executing
from leasemill.testing.conformance.failure import Failing
from leasemill.testing.conformance.group_changes import Regrouping
from leasemill.testing.conformance.groups import Grouping
from leasemill.testing.conformance.hand_over import Handing
from leasemill.testing.conformance.harness import (
    DurableHarness,
    Harness,
    KeptHarness,
    ReopeningHarness,
)
from leasemill.testing.conformance.headers import HeaderFilters
from leasemill.testing.conformance.identity import Identity
from leasemill.testing.conformance.isolation import QueueIsolation
from leasemill.testing.conformance.lanes import Lanes
from leasemill.testing.conformance.lease import Leases
from leasemill.testing.conformance.limit_numbers import LimitNumbers
from leasemill.testing.conformance.limits import Limiting
from leasemill.testing.conformance.operate import Operating
from leasemill.testing.conformance.rates import Rating
from leasemill.testing.conformance.reads import Reading
from leasemill.testing.conformance.recovery import Recovering
from leasemill.testing.conformance.reports import Reporting
from leasemill.testing.conformance.schedules import Scheduling
from leasemill.testing.conformance.ticks import Ticking
from leasemill.testing.conformance.transitions import Transitions
from leasemill.testing.conformance.unique import Uniques
from leasemill.testing.conformance.unique_merge import Merging
from leasemill.testing.conformance.validation import Refusing
from leasemill.testing.conformance.watches import Watching
from leasemill.testing.conformance.worker_commands import Ordering
from leasemill.testing.conformance.worklease import WorkLeases
from leasemill.testing.conformance.worklease_terms import WorkLeaseTerms

__all__ = ["ConformanceSuite", "DurableHarness", "Harness", "KeptHarness", "ReopeningHarness"]


class ConformanceSuite(
    Identity,
    Refusing,
    Enqueuing,
    Claiming,
    Handing,
    Leases,
    Recovering,
    Reporting,
    Transitions,
    Executing,
    Failing,
    Dying,
    Lanes,
    Acquiring,
    WorkLeases,
    WorkLeaseTerms,
    Limiting,
    LimitNumbers,
    Rating,
    Grouping,
    Regrouping,
    Chaining,
    Operating,
    Auditing,
    Ordering,
    HeaderFilters,
    Scheduling,
    Ticking,
    Reading,
    Watching,
    Ending,
    Awaiting,
    Uniques,
    Merging,
    Debouncing,
    QueueIsolation,
):
    """Every test of the contract; a subclass supplies the `harness` fixture."""
