"""The work-lease document, word by word, as a program: what `WorkLease` is compared with. Knows no kernel."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime


class BacklogOrdering(Exception):
    def __init__(self, expected: int, got: int) -> None:
        super().__init__(expected, got)
        self.expected = expected
        self.got = got


class MissingLease(Exception):
    pass


class WrongToken(Exception):
    pass


@dataclass
class Record:
    """The document's LeaseRecord."""

    current_offset: int
    token: str
    acquired_at: datetime
    retry_count: int = 0


@dataclass
class Domain:
    lease: Record | None = None
    processed: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    backlog: deque[int] = field(default_factory=deque)

    def add_to_backlog(self, offset: int) -> None:
        if offset in self.processed | self.failed or offset in self.backlog:
            return
        self.backlog.append(offset)

    def hint(self) -> int | None:
        return self.backlog[0] if self.backlog else None


class Document:
    """Tokens and times are given to it: which ones are drawn is all that it leaves open."""

    def __init__(self, max_retries: int) -> None:
        self.max_retries = max_retries
        self.domains: dict[str, Domain] = {}

    def domain(self, domain_id: str) -> Domain:
        return self.domains.setdefault(domain_id, Domain())

    def try_acquire(self, domain_id: str, offset: int, token: str, now: datetime) -> str:
        domain = self.domain(domain_id)
        if offset in domain.processed:
            return "ALREADY_PROCESSED"
        if offset in domain.failed:
            return "ALREADY_FAILED"
        if domain.lease is not None:
            if offset == domain.lease.current_offset:
                return "ALREADY_ACQUIRED"
            domain.add_to_backlog(offset)
            return "ENQUEUED"
        if domain.backlog:
            head = domain.backlog[0]
            if head != offset:
                raise BacklogOrdering(expected=head, got=offset)
            domain.backlog.popleft()
        domain.lease = Record(offset, token, now)
        return "ACQUIRED"

    def succeed(self, domain_id: str, token: str) -> tuple[str, int | None]:
        domain = self.domain(domain_id)
        lease = self._checked(domain, token)
        domain.processed.add(lease.current_offset)
        domain.lease = None
        return ("NEXT_HINT", domain.hint()) if domain.backlog else ("NO_BACKLOG", None)

    def fail(self, domain_id: str, token: str) -> tuple[str, int, int | None]:
        domain = self.domain(domain_id)
        lease = self._checked(domain, token)
        if lease.retry_count >= self.max_retries:
            domain.failed.add(lease.current_offset)
            domain.lease = None
            status = "GIVE_UP_NEXT_HINT" if domain.backlog else "GIVE_UP_NO_BACKLOG"
            return status, lease.retry_count, domain.hint()
        lease.retry_count += 1
        return "RETRY_SCHEDULED", lease.retry_count, None

    def _checked(self, domain: Domain, token: str) -> Record:
        if domain.lease is None:
            raise MissingLease
        if token != domain.lease.token:
            raise WrongToken
        return domain.lease
