"""A trace through a request, three processes and a kill, in a folder; on PostgreSQL: tests/store/postgres."""

from __future__ import annotations

from pathlib import Path

from tests.contrib.otel.story import check_one_trace, collected


async def test_one_trace_leads_from_a_request_through_a_killed_attempt_to_the_commit(tmp_path: Path) -> None:
    check_one_trace(await collected(f"file:{tmp_path}/jobs", tmp_path))
