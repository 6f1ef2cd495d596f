"""How far a refused report goes on PostgreSQL: it is rare, and decided by the kernel on rows under locks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from leasemill.store.postgres.store import PostgresStore
from leasemill.store.postgres.wire import batch
from leasemill.store.postgres.wire.cursors import PlainCursor
from tests.test_hops import VERBS, OneJob, hops

MOST_STATEMENTS = 4
"""Besides BEGIN and COMMIT."""
SWITCHES_TODAY = 62
"""Not a target: the exact path loads rows into a state, decides, and saves the difference."""


@pytest.mark.parametrize("lane", [None, "lane"])
def test_a_refused_ack_takes_few_statements(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, lane: str | None
) -> None:
    sent: list[bytes] = []
    post = batch._post
    execute: Any = PlainCursor.execute

    def posted(connection: Any, names: Any, statements: Sequence[Any]) -> Any:
        sent.extend(text for text, _ in statements)
        return post(connection, names, statements)

    def executed(cursor: Any, text: Any, *given: Any, **options: Any) -> Any:
        sent.append(text if isinstance(text, bytes) else str(text).encode())
        return execute(cursor, text, *given, **options)

    with PostgresStore(postgres_url) as store:
        job = OneJob(store, lane)
        for verb in VERBS[:-1]:
            job.run(verb)
        monkeypatch.setattr(batch, "_post", posted)
        monkeypatch.setattr(PlainCursor, "execute", executed)
        found = hops(lambda: job.run("refused ack"))
    statements = [text for text in sent if not text.startswith((b"begin", b"commit"))]
    print(f"{len(statements)} statements, {found.functions} functions, {found.switches} switches")  # noqa: T201
    assert 0 < len(statements) <= MOST_STATEMENTS
    assert found.switches <= SWITCHES_TODAY
