"""What `leasemill top` reads on PostgreSQL, where sequence numbers have gaps and counts are kept in tallies."""

from __future__ import annotations

from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec, JobState
from leasemill.operator.overview import overview, read
from leasemill.operator.rates import Flow, Rates
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.clock import ManualClock


def specs(turn: int, queue: str, count: int) -> list[JobSpec]:
    return [JobSpec(f"{queue}-{turn}-{number}", queue, "send") for number in range(count)]


def test_rates_are_true_while_jobs_are_purged_and_known_ids_are_enqueued_again(postgres_url: str) -> None:
    clock = ManualClock()
    with PostgresStore(postgres_url, clock=clock) as store:
        rates = Rates()
        rates.add(read(store).counted())
        for turn in range(4):
            store.enqueue([*specs(turn, "mail", 20), *specs(turn, "ledger", 10)])
            for _ in range(3):
                store.enqueue(specs(turn, "mail", 20))
            leases = [*store.claim("w", ["mail"], 20), *store.claim("w", ["ledger"], 5)]
            store.ack([c.AckReport(lease.job.id, lease.token) for lease in leases])
            clock.advance(s=2)
            if turn % 2:
                store.purge(c.JobFilter(states=frozenset({JobState.SUCCEEDED})), by="ann", reason="a test")
            rates.add(read(store).counted())
        assert rates.whole() == Flow(15, 12.5)
        assert rates.queue("mail") == Flow(10, 10)
        assert rates.queue("ledger") == Flow(5, 2.5)


def test_leases_and_failures_are_those_of_the_store(postgres_url: str) -> None:
    clock = ManualClock()
    with PostgresStore(postgres_url, clock=clock) as store:
        store.enqueue(specs(0, "mail", 3))
        (lease,) = store.claim("w", ["mail"], 1)
        store.nack([c.NackReport(lease.job.id, lease.token, "Fail: no", is_permanent=True)])
        (held,) = store.claim("w", ["mail"], 1)
        clock.advance(s=4)
        shown = overview(read(store), Rates())
        (line,) = shown.running
        assert (line.job, line.left_s) == (held.job.id, (held.expires_at - held.leased_at) / SECOND - 4)
        assert [(one.job, one.error, one.seconds_ago) for one in shown.failures] == [(lease.job.id, "Fail: no", 4.0)]
        assert [(one.queue, one.oldest_due_s) for one in shown.queues] == [("mail", 4.0)]
