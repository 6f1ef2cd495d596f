"""What walks do with groups and chains."""

from __future__ import annotations

import random
from typing import Any

from leasemill.kernel import commands as c
from leasemill.kernel.model import ChainedJob, Rules, UniqueKey
from leasemill.kernel.state import State

GROUPS = 5
"""Groups that are made in turn under a few ids, so that most are known when they are named."""
LANES = (None, None, "a")


class GroupWalk:
    """Draws rules and commands of groups."""

    def __init__(self, source: random.Random, uniques: tuple[UniqueKey, ...] = ()) -> None:
        """`uniques`: keys that some of the callbacks and chained jobs have."""
        self._random = source
        self._uniques = uniques

    def _group(self, state: State) -> str:
        """Mostly one that takes members."""
        open_ones = [group.id for group in state.groups.values() if group.sealed_at is None]
        if open_ones and self._random.random() < 0.8:
            return self._random.choice(open_ones)
        return f"g{self._random.randint(1, GROUPS)}"

    def _job(self) -> ChainedJob:
        pick = self._random.choice
        return ChainedJob(
            pick(("q", "r")),
            pick(("k", "l")),
            pick((b"{}", b'{"a":1}')),
            lane=pick(LANES),
            delay_us=pick((0, 0, 1_000)),
            headers=pick((None, {"trace": "t"})),
            unique=self._unique(),
        )

    def _link(self) -> ChainedJob:
        template = self._job()
        result_name = self._random.choice((None, "found"))
        return ChainedJob("q", "k", template.payload, template.lane, unique=template.unique, result_name=result_name)

    def _unique(self) -> UniqueKey | None:
        return self._random.choice(self._uniques) if self._uniques and self._random.random() < 0.4 else None

    def rules(self, state: State) -> Rules | None:
        if self._random.random() < 0.6:
            return None
        group = self._group(state) if self._random.random() < 0.7 else None
        chain = tuple(self._link() for _ in range(self._random.choice((0, 0, 1, 2))))
        return Rules(group=group, chain=chain) if group is not None or chain else None

    def create(self, state: State) -> c.Command[Any]:
        group_id = f"g{self._random.randint(1, GROUPS)}"
        parent = self._group(state) if self._random.random() < 0.4 else None
        then = self._job() if self._random.random() < 0.7 else None
        on_end = self._job() if self._random.random() < 0.7 else None
        return c.CreateGroup(group_id, then, on_end, parent if parent != group_id else None)

    def seal(self, state: State) -> c.Command[Any]:
        return c.SealGroup(self._group(state))

    def cancel(self, state: State) -> c.Command[Any]:
        return c.CancelGroup(self._group(state), "ada", "because", 100)

    def read(self, state: State) -> c.Command[Any]:
        where = c.JobFilter(group=self._group(state))
        return self._random.choice(
            (
                c.GetGroup(self._group(state)),
                c.ListGroups(2, after="g1"),
                c.ListGroups(10, open_only=True),
                c.ListJobs(where, 10),
            )
        )
