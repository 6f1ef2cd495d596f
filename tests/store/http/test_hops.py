"""How far a reader has to go to follow one verb through the client of a server.

What the server does with the request is one more walk, through its own store. The bars fall when a path gets shorter,
and never rise without a reason in the commit that raises them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from leasemill.store.factory import open_store
from tests.lab.served import serving
from tests.test_hops import VERBS, Hops, OneJob, hops

MOST: Final = {
    "enqueue": Hops(42, 23),
    "claim": Hops(42, 18),
    "start": Hops(40, 18),
    "extend": Hops(38, 18),
    "commit": Hops(44, 20),
    "ack": Hops(39, 19),
    "refused ack": Hops(40, 20),
}


def test_a_verb_through_a_server_takes_few_functions_and_changes_of_file_in_its_client(tmp_path: Path) -> None:
    with serving(f"file:{tmp_path / 'jobs'}") as served, open_store(served.url) as store:
        job = OneJob(store, None)
        found = {verb: hops(partial(job.run, verb)) for verb in VERBS}
    for verb, one in found.items():
        print(f"{verb}: {one.functions} functions, {one.switches} switches")  # noqa: T201
    assert {verb: one for verb, one in found.items() if any(a > b for a, b in zip(one, MOST[verb], strict=True))} == {}
