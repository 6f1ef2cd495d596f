"""Values of columns: policies and terms are arrays of seven numbers, headers and rules JSON, ranges multiranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from leasemill.kernel.index.ranges import Ranges
from leasemill.kernel.model import ChainedJob, OnFailure, Policy, QueueMode, Rules, Terms
from leasemill.store.postgres.rows.tables import QueueUse

MODES: Final = {
    QueueUse.CLAIM: QueueMode.CLAIM,
    QueueUse.RULED: QueueMode.CLAIM,
    QueueUse.ACQUIRE: QueueMode.ACQUIRE,
}
FAILS: Final = (OnFailure.CONTINUE, OnFailure.BLOCK)
_encode = msgspec.json.Encoder().encode
_headers = msgspec.json.Decoder(dict[str, str]).decode
_rules = msgspec.json.Decoder(Rules).decode
_template = msgspec.json.Decoder(ChainedJob).decode
NOT_WRITTEN: Final = Terms(3, 30_000_000, 90_000_000, 5, 500_000, 30_000_000, OnFailure.CONTINUE)
"""The terms of rows that have none: most jobs' by far, and 72 bytes less in two rows of each. Never to be changed."""


def policy_numbers(policy: Policy) -> list[int | None]:
    return [
        policy.max_retries,
        policy.lease_ttl_us,
        policy.timeout_us,
        policy.max_expirations,
        policy.backoff_base_us,
        policy.backoff_cap_us,
        None if policy.on_failure is None else FAILS.index(policy.on_failure),
    ]


def policy_text(policy: Policy | None) -> str | None:
    """As the text of an array, for arrays of arrays that differ in their NULLs."""
    if policy is None:
        return None
    return "{" + ",".join("NULL" if number is None else str(number) for number in policy_numbers(policy)) + "}"


def policy_of(numbers: Sequence[int | None]) -> Policy:
    retries, lease, timeout, expirations, base, cap, fails = numbers
    return Policy(retries, lease, timeout, expirations, base, cap, None if fails is None else FAILS[fails])


def terms_numbers(terms: Terms) -> list[int]:
    return [
        terms.max_retries,
        terms.lease_ttl_us,
        terms.timeout_us,
        terms.max_expirations,
        terms.backoff_base_us,
        terms.backoff_cap_us,
        FAILS.index(terms.on_failure),
    ]


UNWRITTEN_TERMS: Final = list(terms_numbers(NOT_WRITTEN))


def written_terms(terms: Terms) -> list[int] | None:
    """Return the terms as they are written; None for those that are not."""
    return None if terms == NOT_WRITTEN else terms_numbers(terms)


def terms_of(numbers: Sequence[int] | None) -> Terms:
    if numbers is None:
        return NOT_WRITTEN
    retries, lease, timeout, expirations, base, cap, fails = numbers
    return Terms(retries, lease, timeout, expirations, base, cap, FAILS[fails])


def headers_text(headers: dict[str, str] | None) -> str | None:
    return None if headers is None else _encode(headers).decode()


def headers_of(text: str) -> dict[str, str]:
    return _headers(text)


def rules_text(rules: Rules | None) -> str | None:
    """An array of the rules in order; payloads in it are base64."""
    return None if rules is None else _encode(rules).decode()


def rules_of(text: str) -> Rules:
    return _rules(text)


def template_text(template: ChainedJob | None) -> str | None:
    """As in rules."""
    return None if template is None else _encode(template).decode()


def template_of(text: str | None) -> ChainedJob | None:
    return None if text is None else _template(text)


def mode_of(use: QueueUse | None) -> QueueMode | None:
    return None if use is None else MODES[use]


def ranges_of(text: str | None) -> Ranges | None:
    """A multirange as PostgreSQL writes it: `{[1,4),[7,8)}`."""
    if text is None:
        return None
    pairs = [one.split(",") for one in text.strip("{}").removeprefix("[").removesuffix(")").split("),[") if one]
    return Ranges((int(first), int(after) - 1) for first, after in pairs)


def ranges_text(ranges: Ranges | None) -> str | None:
    if ranges is None:
        return None
    return "{" + ",".join(f"[{first},{last + 1})" for first, last in ranges) + "}"
