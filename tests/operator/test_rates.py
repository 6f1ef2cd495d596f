"""Rates of queues, from what two readings differ in: also while retention and operators remove jobs."""

from __future__ import annotations

from leasemill.kernel.commands import AckReport, JobFilter, Totals
from leasemill.kernel.model import SECOND, JobSpec, JobState
from leasemill.operator.overview import read
from leasemill.operator.rates import WINDOW_US, Counted, Flow, Rates, step
from leasemill.store.memory import MemoryStore
from leasemill.testing.clock import ManualClock


def counts(ready: int = 0, succeeded: int = 0, failed: int = 0, cancelled: int = 0) -> dict[JobState, int]:
    return dict.fromkeys(JobState, 0) | {
        JobState.READY: ready,
        JobState.SUCCEEDED: succeeded,
        JobState.FAILED: failed,
        JobState.CANCELLED: cancelled,
    }


def reading(at_s: float, enqueued: int, claims: int, **queues: dict[JobState, int]) -> Counted:
    whole = {state: sum(queue[state] for queue in queues.values()) for state in JobState}
    return Counted(int(at_s * SECOND), Totals(whole, 0, claims, enqueued, None), queues)


def test_nothing_is_known_before_the_second_reading() -> None:
    rates = Rates()
    assert rates.whole() is None
    rates.add(reading(0, 10, 0, mail=counts(ready=10)))
    assert rates.whole() is None
    assert rates.queue("mail") is None


def test_what_came_and_what_ended_is_divided_by_the_time_between() -> None:
    rates = Rates()
    rates.add(reading(0, 10, 0, mail=counts(ready=10)))
    rates.add(reading(2, 40, 20, mail=counts(ready=20, succeeded=18, failed=2)))
    assert rates.whole() == Flow(15, 10)
    assert rates.queue("mail") == Flow(15, 10)


def test_a_queue_that_appears_counts_from_nothing() -> None:
    rates = Rates()
    rates.add(reading(0, 0, 0))
    rates.add(reading(1, 5, 0, mail=counts(ready=5)))
    assert rates.queue("mail") == Flow(5, 0)
    assert rates.queue("elsewhere") == Flow(0, 0)


def test_a_rate_is_the_average_of_a_window() -> None:
    rates = Rates()
    for second in range(31):
        rates.add(reading(second, 10 * second if second <= 10 else 100, 0, mail=counts(ready=min(100, 10 * second))))
        if second == 10:
            assert rates.queue("mail") == Flow(10, 0)
    assert rates.queue("mail") == Flow(0, 0)
    assert WINDOW_US == 10 * SECOND


def test_a_reading_that_is_not_later_is_left_out() -> None:
    rates = Rates()
    rates.add(reading(1, 0, 0, mail=counts()))
    rates.add(reading(1, 5, 0, mail=counts(ready=5)))
    assert rates.whole() is None


def test_retention_in_a_steady_state_hides_nothing() -> None:
    """As many jobs are removed as succeed: 10 a second of mail, 5 of ledger, five seconds' worth at once."""
    before = reading(0, 1_500, 1_500, mail=counts(succeeded=1_000), ledger=counts(succeeded=500))
    now = reading(1, 1_515, 1_515, mail=counts(succeeded=960), ledger=counts(succeeded=480))
    found = step(before, now)
    assert found.whole == Flow(15, 15)
    assert found.queues["mail"] == Flow(10, 10)
    assert found.queues["ledger"] == Flow(5, 5)


def test_a_purge_of_one_queue_is_no_work_of_another() -> None:
    before = reading(0, 600, 600, mail=counts(succeeded=100), old=counts(failed=500))
    now = reading(1, 610, 610, mail=counts(succeeded=110), old=counts())
    assert step(before, now).queues == {"mail": Flow(10, 10), "old": Flow(0, 0)}


def test_purged_jobs_that_were_never_claimed_count_as_removed() -> None:
    before = reading(0, 600, 100, mail=counts(succeeded=100, cancelled=500))
    now = reading(1, 610, 110, mail=counts(succeeded=110))
    assert step(before, now).queues["mail"].entered == 10


def test_a_redrive_is_neither_in_nor_out() -> None:
    before = reading(0, 100, 100, mail=counts(failed=100))
    now = reading(1, 100, 100, mail=counts(ready=100))
    assert step(before, now).queues["mail"] == Flow(0, 0)


def test_sequence_numbers_without_a_job_are_not_taken_for_removed_jobs() -> None:
    """On PostgreSQL an enqueue of a known id may use one up."""
    before = reading(0, 100, 100, mail=counts(succeeded=100))
    now = reading(1, 1_110, 110, mail=counts(succeeded=110))
    assert step(before, now).queues["mail"] == Flow(10, 10)


def test_a_store_that_purges_what_succeeds_shows_its_true_rates() -> None:
    clock = ManualClock()
    with MemoryStore(clock) as store:
        rates = Rates()
        rates.add(read(store).counted())
        for turn in range(3):
            store.enqueue([JobSpec(f"{turn}-{number}", "mail", "send", b"{}") for number in range(20)])
            leases = store.claim("w", ["mail"], 15)
            store.ack([AckReport(lease.job.id, lease.token) for lease in leases])
            clock.advance(s=2)
            purged = store.purge(JobFilter(states=frozenset({JobState.SUCCEEDED})), by="ann", reason="a test")
            assert len(purged.job_ids) == 15
            rates.add(read(store).counted())
        assert rates.whole() == rates.queue("mail") == Flow(10, 7.5)
