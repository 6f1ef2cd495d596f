"""The tables' columns, declared once. A row is read as `row_to_json` and written through `json_populate_recordset`.

A column that is NULL is left out. What NULL stands for is said in `admin/schema` and known to `rows` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

import msgspec
from msgspec import Struct

from leasemill.errors import Broken
from leasemill.kernel.model import AbortReason, Action, EndingVerb, JobState, LossReason, ReportVerb, Verb

RowsT = TypeVar("RowsT")


class QueueUse(StrEnum):
    """How a queue is used, as it is stored: one with rules is claimed from by versions that know them only."""

    CLAIM = "claim"
    RULED = "ruled"
    ACQUIRE = "acquire"


class Row(Struct, frozen=True, omit_defaults=True, gc=False):
    """A row of a table, by the names of its columns."""


class QueueRow(Row, frozen=True):
    name: str
    is_paused: bool
    mode: QueueUse | None = None
    policy: list[int | None] | None = None


class JobRow(Row, frozen=True):
    no: int
    created_at: int
    priority: int
    id: str
    queue: str
    kind: str
    payload: str
    lane: str | None = None
    lane_offset: int | None = None
    run_at: int | None = None
    delay_us: int | None = None
    policy: list[int | None] | None = None
    headers: str | None = None
    rules: str | None = None
    group_id: str | None = None
    replaced: int | None = None
    replaced_at: int | None = None


class KeyRow(Row, frozen=True):
    """A unique key of a queue, and the job that took it last."""

    queue: str
    key: str
    no: int
    until_at: int
    id: str | None = None


class ReadyRow(Row, frozen=True):
    available_at: int
    seq: int
    rank: int
    queue: str
    no: int | None = None
    attempt: int | None = None
    retries: int | None = None
    expirations: int | None = None


class ParkedRow(Row, frozen=True):
    """A claimable job that waits for a place or a rate."""

    queue: str
    line: str
    rank: int
    available_at: int
    seq: int
    no: int
    attempt: int | None = None
    retries: int | None = None
    expirations: int | None = None


class WaitingRow(Row, frozen=True):
    queue: str
    lane: str
    turn: int
    no: int
    seq: int
    rank: int
    available_at: int
    attempt: int
    retries: int
    expirations: int


class RunRow(Row, frozen=True, kw_only=True):
    """The columns of a run, under its lease and afterwards."""

    no: int
    available_at: int
    fence: int
    leased_at: int
    expires_at: int
    attempt: int
    token: str
    worker: str
    request_id: str | None = None
    retries: int | None = None
    expirations: int | None = None
    terms: list[int] | None = None
    started_at: int | None = None
    committed_at: int | None = None
    result: str | None = None
    error: str | None = None
    kept_report_id: str | None = None
    kept_retries: int | None = None


class LeaseRow(RunRow, frozen=True, kw_only=True):
    rank: int
    queue: str
    lane: str | None = None
    lane_offset: int | None = None
    seq: int | None = None
    updated_at: int | None = None


class ExecutionRow(RunRow, frozen=True, kw_only=True):
    finished_at: int
    slot: int
    ended_by: EndingVerb
    is_final: bool
    committed_by: Verb | None = None
    retry_at: int | None = None
    reason: AbortReason | None = None


class KeptRow(Row, frozen=True):
    """A job that is FAILED, DEAD or CANCELLED."""

    no: int
    seq: int
    state: JobState
    available_at: int
    updated_at: int
    retries: int
    expirations: int
    blocks_lane: bool


class MarkRow(Row, frozen=True):
    """A job that was redriven."""

    no: int
    seq: int
    redriven_attempt: int
    redriven_at: int


class CancellationRow(Row, frozen=True):
    no: int
    at: int
    by_whom: str
    reason: str


class LaneRow(Row, frozen=True):
    queue: str
    lane: str
    is_blocked: bool
    head: int | None = None
    head_seq: int | None = None
    finished: str | None = None
    failed: str | None = None
    last_finished: int | None = None


class GroupRow(Row, frozen=True):
    """`total` is without the members that are still in group_joins."""

    id: str
    created_at: int
    total: int
    succeeded: int
    failed: int
    dead: int
    cancelled: int
    is_over: bool
    sealed_at: int | None = None
    ended_at: int | None = None
    succeeded_at: int | None = None
    parent: str | None = None
    then_job: str | None = None
    end_job: str | None = None


class LoadedGroup(GroupRow, frozen=True):
    joins: int = 0
    """How many rows of group_joins it has."""
    joined: int = 0
    """How many members these stand for."""


class RefusalRow(Row, frozen=True):
    no: int
    token: str
    verb: ReportVerb
    current_attempt: int
    reason: LossReason
    at: int
    worker: str | None = None
    attempt: int | None = None


class TallyRow(Row, frozen=True):
    queue: str
    succeeded: int


class ActionRow(Row, frozen=True):
    at: int
    verb: Verb
    by_whom: str
    target: str
    reason: str
    count: int
    first_at: int | None
    others: tuple[str, ...]


def action_row(one: Action) -> ActionRow:
    return ActionRow(one.at, one.verb, one.by, one.target, one.reason, one.count, one.first_at, one.others)


def decoder(kind: type[RowsT]) -> Callable[[str], RowsT]:
    """Rows of these tables, as JSON. What a later version has written, and this one does not know, is never guessed."""
    decode = msgspec.json.Decoder(kind).decode

    def decoded(document: str) -> RowsT:
        try:
            return decode(document)
        except msgspec.ValidationError as error:
            raise unknown(error) from error

    return decoded


def known_verb(name: str) -> Verb:
    try:
        return Verb(name)
    except ValueError as error:
        raise unknown(error) from error


def unknown(error: Exception) -> Broken:
    return Broken(f"the tables hold what this Leasemill does not know ({error}); upgrade Leasemill to read it")


class Read(Struct, gc=False):
    """Jobs as read.sql and load.sql return them: rows of each table, those of executions and refusals in order."""

    jobs: list[JobRow] | None
    leases: list[LeaseRow] | None
    executions: list[ExecutionRow] | None
    kept: list[KeptRow] | None
    marks: list[MarkRow] | None
    cancellations: list[CancellationRow] | None
    refusals: list[RefusalRow] | None
