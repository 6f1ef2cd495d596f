"""What the reporter knows of claims: that one may go along with its reports (C8). Nothing here claims."""

from __future__ import annotations

from typing import Protocol

from leasemill.kernel import commands as c


class ClaimsAlong(Protocol):
    """Who has claims to send with reports."""

    def claim_along(self, reported: int, *, are_lanes: bool) -> c.Claim | None: ...

    def claimed_along(self, leases: list[c.Lease] | None, sent_at: float, took_s: float) -> None: ...
