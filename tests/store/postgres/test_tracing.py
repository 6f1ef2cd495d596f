"""Traces on PostgreSQL: through a user's own transaction, and through a killed worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

from leasemill import App, Context
from leasemill.contrib.otel.carrier import creation
from tests.contrib.otel.story import check_one_trace, collected
from tests.contrib.otel.support import Recorded, is_child, linked, of, span_id
from tests.worker.support import drained


async def test_one_trace_leads_from_a_request_through_a_killed_attempt_to_the_commit(
    postgres_url: str, tmp_path: Path
) -> None:
    check_one_trace(await collected(postgres_url, tmp_path))


async def test_jobs_enqueued_in_a_users_transaction_carry_the_trace(
    postgres_url: str, server_url: str, bank: psycopg.Connection[Any]
) -> None:
    recorded = Recorded()
    with App(postgres_url) as app:
        recorded.instrument(app)

        @app.job
        def book(cents: int) -> None: ...

        with recorded.tracer.start_as_current_span("request"), bank.transaction():
            bank.execute("update balance set cents = cents + 5")
            handle = book.using(bank).enqueue(5)
        send = recorded.span("send default")
        assert is_child(send, recorded.span("request"))
        found = creation(handle.record().spec.headers)
        assert found is not None
        assert found.span_id == span_id(send)
        await drained(app)
        assert linked(recorded.span("process default")) == [span_id(send)]


async def test_a_commit_of_a_users_session_is_a_span(postgres_url: str, bank: psycopg.Connection[Any]) -> None:
    recorded = Recorded()
    with App(postgres_url) as app:
        recorded.instrument(app)

        @app.job(queue="mail")
        def receipt() -> None: ...

        @app.job
        def book(ctx: Context) -> None:
            with ctx.commit() as tx:
                tx.execute("update balance set cents = cents + 5")
                tx.enqueue(receipt)

        book.enqueue()
        await drained(app)
        process, commit = recorded.span("process default"), recorded.span("commit default")
        assert is_child(commit, process)
        assert of(commit, "leasemill.outcome") == [None]
        assert linked(recorded.span("process mail")) == [span_id(process)]
        row = bank.execute("select cents from balance").fetchone()
        assert row == (5,)
