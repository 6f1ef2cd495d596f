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

from leasemill.testing.conformance.acquire import Acquiring  # noqa: E402  (asserts are rewritten at import)
from leasemill.testing.conformance.async_calls import Awaiting  # noqa: E402
from leasemill.testing.conformance.audit import Auditing  # noqa: E402
from leasemill.testing.conformance.chains import Chaining  # noqa: E402
from leasemill.testing.conformance.claim import Claiming  # noqa: E402
from leasemill.testing.conformance.death import Dying  # noqa: E402
from leasemill.testing.conformance.debounce import Debouncing  # noqa: E402
from leasemill.testing.conformance.ends import Ending  # noqa: E402
from leasemill.testing.conformance.enqueue import Enqueuing  # noqa: E402
from leasemill.testing.conformance.execution import Executing  # noqa: E402
from leasemill.testing.conformance.failure import Failing  # noqa: E402
from leasemill.testing.conformance.group_changes import Regrouping  # noqa: E402
from leasemill.testing.conformance.groups import Grouping  # noqa: E402
from leasemill.testing.conformance.hand_over import Handing  # noqa: E402
from leasemill.testing.conformance.harness import (  # noqa: E402
    DurableHarness,
    Harness,
    KeptHarness,
    ReopeningHarness,
)
from leasemill.testing.conformance.headers import HeaderFilters  # noqa: E402
from leasemill.testing.conformance.identity import Identity  # noqa: E402
from leasemill.testing.conformance.isolation import QueueIsolation  # noqa: E402
from leasemill.testing.conformance.lanes import Lanes  # noqa: E402
from leasemill.testing.conformance.lease import Leases  # noqa: E402
from leasemill.testing.conformance.limit_numbers import LimitNumbers  # noqa: E402
from leasemill.testing.conformance.limits import Limiting  # noqa: E402
from leasemill.testing.conformance.operate import Operating  # noqa: E402
from leasemill.testing.conformance.rates import Rating  # noqa: E402
from leasemill.testing.conformance.reads import Reading  # noqa: E402
from leasemill.testing.conformance.recovery import Recovering  # noqa: E402
from leasemill.testing.conformance.reports import Reporting  # noqa: E402
from leasemill.testing.conformance.schedules import Scheduling  # noqa: E402
from leasemill.testing.conformance.ticks import Ticking  # noqa: E402
from leasemill.testing.conformance.transitions import Transitions  # noqa: E402
from leasemill.testing.conformance.unique import Uniques  # noqa: E402
from leasemill.testing.conformance.unique_merge import Merging  # noqa: E402
from leasemill.testing.conformance.validation import Refusing  # noqa: E402
from leasemill.testing.conformance.watches import Watching  # noqa: E402
from leasemill.testing.conformance.worker_commands import Ordering  # noqa: E402
from leasemill.testing.conformance.worklease import WorkLeases  # noqa: E402
from leasemill.testing.conformance.worklease_terms import WorkLeaseTerms  # noqa: E402

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
