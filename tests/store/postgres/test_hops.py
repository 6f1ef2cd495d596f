"""How far a reader has to go to follow one verb on PostgreSQL, and how many statements it sends.

The bars fall when a path gets shorter, and never rise without a reason in the commit that raises them. A refused report
is rare, and decided by the kernel on rows under locks: it loads rows into a state, decides, and saves the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import pytest

from leasemill.store.postgres.driver.connections import Connections
from leasemill.store.postgres.store import PostgresStore
from tests.test_hops import VERBS, OneJob, hops


class Most(NamedTuple):
    statements: int
    """Besides BEGIN and COMMIT."""
    functions: int
    switches: int


LONG: Final = Most(1_000, 1_000, 1_000)
MOST: Final = {
    "enqueue": Most(4, 59, 47),
    "claim": Most(1, 70, 40),
    "start": Most(1, 52, 30),
    "extend": Most(1, 49, 29),
    "commit": Most(4, 74, 77),
    "ack": Most(2, 57, 38),
    "refused ack": Most(3, 108, 78),
}


@pytest.mark.parametrize("lane", [None, "lane"])
def test_a_verb_on_postgresql_takes_few_statements_functions_and_changes_of_file(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, lane: str | None
) -> None:
    sent: list[bytes] = []
    exchange = Connections.exchange

    def noted(connections: Connections, connection: Any, statements: Sequence[Any]) -> Any:
        sent.extend(text for text, _ in statements if not text.startswith((b"begin", b"commit")))
        return exchange(connections, connection, statements)

    monkeypatch.setattr(Connections, "exchange", noted)
    with PostgresStore(postgres_url) as store:
        job = OneJob(store, lane)
        found: dict[str, Most] = {}
        for number in range(3):  # the shortest of three: on a busy machine a call may have to wait, or to begin again
            for verb in VERBS:
                sent.clear()
                store._known.expiry_position.looks()  # L7: a claim looks for expired leases every few seconds
                path = hops(partial(job.run, verb, f"job {number}"))
                found[verb] = min(Most(len(sent), path.functions, path.switches), found.get(verb, LONG))
        for verb, one in found.items():
            print(f"{verb}: {one.functions} functions, {one.switches} switches, {one.statements} statements")  # noqa: T201
    assert {verb: one for verb, one in found.items() if any(a > b for a, b in zip(one, MOST[verb], strict=True))} == {}
