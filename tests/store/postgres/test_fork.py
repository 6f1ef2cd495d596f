"""A process that forks after it has used a store: parent and child both go on."""

from __future__ import annotations

import pytest

from tests.process.test_fork import forked


@pytest.mark.timeout(120)
def test_calls_watches_and_commits_work_in_a_forked_child_and_in_its_parent(postgres_url: str) -> None:
    done = forked(postgres_url)
    assert done.returncode == 0, done.stderr
