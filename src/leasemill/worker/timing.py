"""The rules between times, checked together: a set that cannot work is refused before it does harm. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from leasemill.errors import Invalid
from leasemill.kernel.model import SECOND, Policy, Terms
from leasemill.kernel.transitions.retry import settle
from leasemill.worker.pacing import BEAT_FRACTION

DEFAULT_REAPER_S: Final = 10.0
DEFAULT_SHUTDOWN_S: Final = 20.0

SHORTEST_SHUTDOWN_S: Final = 0.5
"""What a shutdown takes at the least: what runs must be given back."""
HURRY_S: Final = 2.0
"""What a shutdown takes at most that waits for no handler."""
STOP_GRACE_S: Final = 1.0
"""How long handlers may take at most to clean up when the worker stops them."""
LAST_REPORTS_S: Final = 2.0
"""How long the last reports may take at most."""
CLOSING_S: Final = 1.0
"""How long the worker's threads and the store may take at most to end."""


class Times:
    """The times of one worker: those it was given, else those that fit the leases its jobs get.

    A queue's policy may shorten the leases while the worker runs. A given time that does not fit any more is then
    replaced by one that does, for as long as that is so.
    """

    def __init__(
        self,
        kinds: Mapping[str, Policy],
        queues: Iterable[str],
        *,
        heartbeat_s: float | None,
        reaper_s: float | None,
        shutdown_s: float | None,
    ) -> None:
        self._heartbeat_s = heartbeat_s
        self._kinds = dict(kinds)
        self._reaper_s = reaper_s
        self._shutdown_s = shutdown_s
        self._policies: dict[str, Policy | None] = {}
        self.adopt(dict.fromkeys(queues))

    def adopt(self, policies: Mapping[str, Policy | None]) -> bool:
        """Adopt the queues' policies as the store has them; True if something changed."""
        if policies == self._policies:
            return False
        self._policies = dict(policies)
        self._terms = {  # I5: of every kind in every queue, a job's own policy left out
            (kind, queue): settle(None, queue_policy, kind_policy)
            for kind, kind_policy in (self._kinds or {"": Policy()}).items()
            for queue, queue_policy in self._policies.items()
        }
        self._shortest = min(self._terms, key=lambda which: self._terms[which].lease_ttl_us)
        self.shortest_lease_s = self._terms[self._shortest].lease_ttl_us / SECOND
        return True

    @property
    def heartbeat_s(self) -> float | None:
        """The longest time between heartbeats; None: as each lease needs it."""
        given_s = self._heartbeat_s
        return None if given_s is None else min(given_s, self.shortest_lease_s * BEAT_FRACTION)

    @property
    def reaper_s(self) -> float:
        given_s, lease_s = self._reaper_s, self.shortest_lease_s
        return given_s if given_s is not None and given_s < lease_s else default_reaper_s(lease_s)

    @property
    def shutdown_s(self) -> float:
        given_s = self._shutdown_s
        return default_shutdown_s(self.shortest_lease_s) if given_s is None else min(given_s, self.shortest_lease_s)

    def check(self) -> None:
        broken = self.broken_rules()
        if broken:
            raise Invalid("\n".join(broken))

    def broken_rules(self) -> list[str]:
        """One sentence for each rule that does not hold; a default always fits."""
        heartbeat_s, reaper_s, shutdown_s = self._heartbeat_s, self._reaper_s, self._shutdown_s
        lease_s = self.shortest_lease_s
        lease = f"the shortest lease, {lease_s:g} s ({_where(*self._shortest)})"
        sentences = []
        if heartbeat_s is not None and not 0 < heartbeat_s < lease_s / 3:
            sentences.append(
                f"heartbeat interval {heartbeat_s:g} s must be more than 0 and less than a third of {lease}: "
                f"write at most {lease_s * BEAT_FRACTION:g}, or leave it out"
            )
        if reaper_s is not None and not 0 < reaper_s < lease_s:
            sentences.append(
                f"reaper interval {reaper_s:g} s must be more than 0 and less than {lease}: "
                f"write {default_reaper_s(lease_s):g}, or leave it out"
            )
        if shutdown_s is not None and not 0 <= shutdown_s <= lease_s:
            sentences.append(
                f"shutdown timeout {shutdown_s:g} s must not be negative nor longer than {lease}: "
                f"write {default_shutdown_s(lease_s):g}, or leave it out; to let long jobs end before the worker does, "
                "write `infinity` (math.inf), or quiet the worker first: `leasemill workers quiet WORKER --wait`"
            )
        for (kind, queue), terms in self._terms.items():
            sentences += _broken_terms(_where(kind, queue), terms)
        return sentences


def default_reaper_s(lease_s: float) -> float:
    return min(DEFAULT_REAPER_S, lease_s / 2)


def default_shutdown_s(lease_s: float) -> float:
    return min(DEFAULT_SHUTDOWN_S, lease_s)


class ShutdownPlan(NamedTuple):
    """When which part of a shutdown is over, in monotonic time. All of them together take the limit, and no longer."""

    handlers_until: float
    """Handlers may end by themselves."""
    grace_until: float
    """Handlers that were stopped may clean up."""
    reports_until: float
    closing_until: float
    gone_by: float


def shutdown_plan(now: float, limit_s: float, *, waits_for_handlers: bool = True) -> ShutdownPlan:
    """How the time of a shutdown that begins now is divided."""
    limit_s = max(limit_s, SHORTEST_SHUTDOWN_S)
    gone_by = now + limit_s
    reports_until = gone_by - min(CLOSING_S, limit_s / 6)
    closing_until = (reports_until + gone_by) / 2
    if not waits_for_handlers:
        return ShutdownPlan(now, now + min(STOP_GRACE_S, limit_s / 3), reports_until, closing_until, gone_by)
    grace_until = reports_until - min(LAST_REPORTS_S, limit_s / 6)
    handlers_until = grace_until - min(STOP_GRACE_S, limit_s / 6)
    return ShutdownPlan(handlers_until, grace_until, reports_until, closing_until, gone_by)


def _broken_terms(where: str, terms: Terms) -> list[str]:
    sentences = []
    if terms.timeout_us <= 0:
        sentences.append(f"timeout of {where} must be more than 0")
    if terms.max_retries < 0:
        sentences.append(f"max_retries of {where} must be 0 or more")
    if not 0 <= terms.backoff_base_us <= terms.backoff_cap_us:
        sentences.append(
            f"back-off base {terms.backoff_base_us / SECOND:g} s of {where} must not exceed its cap "
            f"{terms.backoff_cap_us / SECOND:g} s: raise the cap or lower the base"
        )
    return sentences


def _where(kind: str, queue: str) -> str:
    return f"kind {kind!r} in queue {queue!r}" if kind else f"queue {queue!r}"
