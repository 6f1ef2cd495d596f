"""The bounds of names, texts, numbers and batches.

A command is checked once, when a store receives it; the message of a refusal says what to write instead.

A batch with one wrong item is refused whole: nothing of it happens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

import msgspec

from leasemill.errors import Invalid
from leasemill.kernel.model import QUEUE_LIMIT, SECOND, OnFailure, Policy, Rules

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}", re.ASCII)
UNPRINTABLE: Final = re.compile(
    r"[\u0000-\u001f\u007f-\u00a0\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u1680\u180e"
    r"\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ud800-\uf8ff\ufdd0-\ufdef\ufeff\ufff0-\ufffb\ufffe\uffff"
    r"\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U0001fffe\U0001ffff\U0002fffe\U0002ffff\U0003fffe-\U000e00ff\U000e01f0-\U0010ffff]"
)
"""Controls, formats, separators but for the space, surrogates, private use, and what is no character. Written out, so
that every Python and every store refuse the same: `str.isprintable` also refuses characters that its version of Unicode
does not know. `is_printable` in PostgreSQL has the same list."""
TEXT_LENGTH: Final = 200
STRING_LENGTH: Final = 100_000
PAYLOAD_BYTES: Final = 1024 * 1024
BATCH_ITEMS: Final = 10_000
BATCH_BYTES: Final = 64 * 1024 * 1024
FOLLOWUPS: Final = 1_000
LATEST: Final = 253_402_300_799 * SECOND
LONGEST_US: Final = 3_660 * 24 * 3_600 * SECOND
LARGEST_OFFSET: Final = 2**63 - 2
HEADERS: Final = 32
HEADERS_LENGTH: Final = 4_096
HIGHEST_PRIORITY: Final = 9
LIMITS: Final = 4
CHAINED: Final = 100
CHAIN_BYTES: Final = 128 * 1024
"""The bytes of the jobs that follow one in a chain: each end writes the rest of it again."""

POLICY: Final = {
    "max_retries": (0, 1_000),
    "max_expirations": (1, 1_000),
    "lease_ttl_us": (1_000, LONGEST_US),
    "timeout_us": (1, LONGEST_US),
    "backoff_base_us": (0, LONGEST_US),
    "backoff_cap_us": (0, LONGEST_US),
}
"""F6: the least and the most of each number in a policy."""

JSON_DEPTH: Final = 500
CONTAINERS: Final = (dict, list)

_json_decode = msgspec.json.Decoder().decode


class _Limited(Protocol):
    @property
    def limit(self) -> int: ...


class LeaseReport(Protocol):
    @property
    def job_id(self) -> str: ...
    @property
    def token(self) -> str: ...


def check_name(what: str, name: str) -> None:
    if not isinstance(name, str):
        raise Invalid(f"{what} is {_shown(name)}; it must be text", field=what)
    _check_name(what, name)


@lru_cache(maxsize=1_024)
def _check_name(what: str, name: str) -> None:
    """Remembers names that it let pass: a program uses few, and each in every call."""
    if NAME.fullmatch(name) is None:
        raise Invalid(
            f"{what} {_shown(name)} is not a name: use 1 to 100 of A-Z a-z 0-9 _ . : - "
            "and begin with a letter, a digit or _",
            field=what,
            limit=NAME.pattern,
        )


def check_text(what: str, text: str, longest: int = TEXT_LENGTH) -> None:
    is_printable = text.isprintable() if text.isascii() else UNPRINTABLE.search(text) is None
    if not 0 < len(text) <= longest or not is_printable:
        raise Invalid(
            f"{what} {_shown(text)} must be 1 to {longest} printable characters", field=what, limit=f"1 to {longest}"
        )


def check_string(what: str, value: str) -> None:
    """Text of any kind, as long as it can be written down and read again."""
    if not isinstance(value, str):
        raise Invalid(f"{what} is {_shown(value)}; it must be text")
    if len(value) > STRING_LENGTH or "\0" in value:
        raise Invalid(
            f"{what} must have at most {STRING_LENGTH:,} characters, and no NUL: shorten it",
            field=what,
            limit=f"{STRING_LENGTH}",
        )
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Invalid(f"{what} {_shown(value)} cannot be encoded as UTF-8") from None


def check_strings(what: str, values: Sequence[str]) -> None:
    """Check each text as `check_string` does: together, because almost always all are short ASCII."""
    try:
        joined = "".join(values)
    except TypeError:
        joined = "\0"
    if len(joined) > STRING_LENGTH or "\0" in joined or not joined.isascii():
        for value in values:
            check_string(what, value)


def check_json(what: str, content: bytes) -> None:
    if not isinstance(content, bytes):
        raise Invalid(f"{what} is a {type(content).__name__}; it must be JSON in bytes")
    if len(content) > PAYLOAD_BYTES:
        raise Invalid(
            f"{what} has {len(content):,} bytes; the limit is {PAYLOAD_BYTES:,}: "
            "store it elsewhere and pass a reference",
            field=what,
            limit=f"{PAYLOAD_BYTES}",
        )
    try:
        value = _json_decode(content)
        is_deep = content.count(b"[") + content.count(b"{") > JSON_DEPTH and _is_deeper(value, JSON_DEPTH)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"{what} is not JSON: {error}") from None
    except RecursionError:
        is_deep = True
    if is_deep:
        raise Invalid(
            f"{what} is nested more than {JSON_DEPTH} levels deep: make it flatter", field=what, limit=f"{JSON_DEPTH}"
        )


def _is_deeper(value: Any, depth: int) -> bool:
    """Level by level: who reads it on another version of Python may have less of a stack."""
    level = [value]
    for _ in range(depth):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) in CONTAINERS
        ]
        if not level:
            return False
    return True


def check_policy(policy: Policy | None) -> None:
    """F6: every bound of a policy, and the bounds between them."""
    if policy is None:
        return
    for name, (least, most) in POLICY.items():
        check_range(name, getattr(policy, name), least, most)
    if policy.on_failure is not None and not isinstance(policy.on_failure, OnFailure):
        raise Invalid(f"on_failure is {_shown(policy.on_failure)}; it must be one of {', '.join(OnFailure)}")
    base, cap = policy.backoff_base_us, policy.backoff_cap_us
    if base is not None and cap is not None and base > cap:
        raise Invalid(f"backoff_base_us {base} is more than backoff_cap_us {cap}: make the cap at least the base")


def check_headers(headers: dict[str, str]) -> None:
    """A few short texts by name: what travels with a job, such as a trace."""
    if len(headers) > HEADERS:
        raise Invalid(f"{len(headers)} headers; a job has at most {HEADERS}")
    for name, value in headers.items():
        check_name("header", name)
        check_string(f"header {name!r}", value)
    if sum(len(name) + len(value) for name, value in headers.items()) > HEADERS_LENGTH:
        raise Invalid(f"the headers of a job have at most {HEADERS_LENGTH:,} characters: shorten them")


def check_rules(rules: Rules) -> None:
    unique = rules.unique
    if unique is not None:
        check_text("unique key", unique.key)
        check_number("keep_us", unique.keep_us, 0, LONGEST_US)
        check_range("at_most_us", unique.at_most_us, 1, LONGEST_US)
        if not rules.limits and rules.group is None and not rules.chain:
            return
    if len(rules.limits) > LIMITS:
        raise Invalid(f"{len(rules.limits)} limits; a job is under at most {LIMITS}")
    if len(set(rules.limits)) < len(rules.limits):
        raise Invalid("a job names a limit twice: name it once")
    for limit in rules.limits:
        check_name("limit", limit.name)
        if limit.name.startswith(QUEUE_LIMIT):
            raise Invalid(f"limit {limit.name!r}: names that begin with {QUEUE_LIMIT!r} are the queues' own")
        if limit.key is not None:
            check_text("key of a limit", limit.key)
    if rules.group is not None:
        check_text("group", rules.group)
    if len(rules.chain) > CHAINED:
        raise Invalid(f"{len(rules.chain)} jobs in a chain; at most {CHAINED} may follow one")
    if sum(len(chained.payload) for chained in rules.chain) > CHAIN_BYTES:
        raise Invalid(f"the payloads of a chain have more than {CHAIN_BYTES:,} bytes: pass references")
    for chained in rules.chain:
        if chained.result_name is not None:
            check_text("result_name", chained.result_name)
            if not chained.payload.startswith(b"{"):
                raise Invalid(f"the payload of {chained.kind} takes a result, so it must be a JSON object")


def check_range(what: str, value: int | None, least: int, most: int) -> None:
    if value is not None:
        check_number(what, value, least, most)


def check_number(what: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise Invalid(
            f"{what} is {value!r}; it must be a whole number from {least} to {most}",
            field=what,
            limit=f"{least} to {most}",
        )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def check_batch(items: Sequence[object]) -> None:
    if len(items) > BATCH_ITEMS:
        raise Invalid(f"{len(items):,} items in one call; the limit is {BATCH_ITEMS:,}: send several calls")


def check_limit(command: _Limited) -> None:
    check_range("limit", command.limit, 1, BATCH_ITEMS)


def check_reports(reports: Sequence[LeaseReport]) -> None:
    """Their number, and the two fields by which every report names its lease."""
    check_batch(reports)
    check_strings("job id", [report.job_id for report in reports])
    check_strings("token", [report.token for report in reports])
