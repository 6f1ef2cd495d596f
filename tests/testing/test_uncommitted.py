"""Jobs that a test enqueued in a transaction that it never commits: nothing runs them, and a hint says why."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from leasemill import App
from leasemill.testing.binding import Binder
from leasemill.testing.database import PostgresSchema

app = App()


@app.job
def ship(order_id: int) -> None:
    """Somebody would ship it."""


def test_a_drain_that_ran_nothing_names_the_transaction_that_did_not_commit(
    leasemill: Binder, leasemill_postgres: PostgresSchema, caplog: pytest.LogCaptureFixture
) -> None:
    engine = create_engine(leasemill_postgres.conninfo.replace("postgresql://", "postgresql+psycopg://"))
    with leasemill(app, store="postgresql") as jobs, engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint") as session:  # the usual recipe
            ship.using(session).enqueue(1)
            session.commit()
            assert jobs.finish().started == 0
        assert "nothing ran: 1 job was enqueued with using(...) in a transaction that has not committed" in caplog.text
        outer.rollback()
        caplog.clear()
        with Session(engine) as session:
            ship.using(session).enqueue(1)
            session.commit()
        assert jobs.finish().succeeded == 1
    engine.dispose()
    assert "nothing ran" not in caplog.text
