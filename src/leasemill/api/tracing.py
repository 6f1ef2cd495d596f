"""`Tracing`: what follows a job from where it is enqueued to where it runs. An app has none by default.

It stands around the calls by which a program hands jobs to the store, and adds to their headers when they are sent, not
when a call is made: what a schedule keeps belongs to no trace.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from leasemill.kernel import commands as c


class Sending(Protocol):
    """An enqueue that is followed."""

    @property
    def command(self) -> c.Enqueue:
        """What is sent: the jobs with their headers."""

    def answered(self, outcomes: list[c.EnqueueOutcome]) -> None: ...


class Committing(Protocol):
    """A commit that is followed."""

    def answered(self, outcome: c.CommitOutcome | None) -> None: ...


class Tracing(Protocol):
    """None of these may raise, but what the call inside raises."""

    def sending(self, command: c.Enqueue) -> AbstractContextManager[Sending]:
        """Around an enqueue, in the thread or the task that waits for it."""

    def committing(self, lease: c.Lease) -> AbstractContextManager[Committing]:
        """Around the commit of a run, in the thread or the task of its handler."""

    def carried(self, headers: dict[str, str] | None) -> dict[str, str] | None:
        """The headers of a job that another fact will enqueue: a follow-up, a callback of a group."""
