"""The verbs, as they are recorded; and which of them report on a lease, or end an execution.

A verb that is stored needs a format of the log that knows it: `kernel.transitions.formats`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args


class Verb(StrEnum):
    ENQUEUE = "enqueue"
    CLAIM = "claim"
    START = "start"
    EXTEND = "extend"
    COMMIT = "commit"
    ACK = "ack"
    NACK = "nack"
    RELEASE = "release"
    EXPIRE = "expire"
    DEATH = "death"
    ACQUIRE = "acquire"
    CANCEL = "cancel"
    REDRIVE = "redrive"
    PAUSE = "pause"
    RESUME = "resume"
    SET_POLICY = "set_policy"
    PURGE = "purge"
    PRUNE = "prune"
    SET_LIMIT = "set_limit"
    CLEAR_LIMIT = "clear_limit"
    DECLARE_LIMIT = "declare_limit"
    SET_SCHEDULE = "set_schedule"
    REMOVE_SCHEDULE = "remove_schedule"
    PAUSE_SCHEDULE = "pause_schedule"
    RESUME_SCHEDULE = "resume_schedule"
    FIRE = "fire"
    BACKFILL = "backfill"
    SEAL_GROUP = "seal_group"
    QUIET_WORKER = "quiet_worker"
    RESUME_WORKER = "resume_worker"
    STOP_WORKER = "stop_worker"


_Report: TypeAlias = Literal[Verb.START, Verb.EXTEND, Verb.COMMIT, Verb.ACK, Verb.NACK, Verb.RELEASE]
_Ending: TypeAlias = Literal[Verb.ACK, Verb.NACK, Verb.RELEASE, Verb.EXPIRE, Verb.DEATH, Verb.CANCEL]

# To mypy a field holds only these verbs, so that a `match` over it is complete; msgspec knows no literals of an enum.
if TYPE_CHECKING:
    ReportVerb: TypeAlias = _Report
    EndingVerb: TypeAlias = _Ending
else:
    ReportVerb = EndingVerb = Verb

REPORT_VERBS: Final[tuple[ReportVerb, ...]] = get_args(_Report)
ENDING_VERBS: Final[tuple[EndingVerb, ...]] = get_args(_Ending)
