"""`Call`: one call of a job that is checked and not sent yet."""

from __future__ import annotations

from typing import Any, Generic, Protocol, Self, TypeVar

from msgspec.structs import replace

from leasemill.api.arguments import Arguments
from leasemill.api.handle import JobHandle
from leasemill.api.hooks import Hooks
from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.kernel.model import ChainedJob, JobSpec, Rules
from leasemill.store.base import Store

R_co = TypeVar("R_co", covariant=True)
CallT = TypeVar("CallT", bound="Call[Any]")


class HasStore(Protocol):
    @property
    def store(self) -> Store: ...
    @property
    def hooks(self) -> Hooks: ...


def checked_call(call: CallT) -> CallT:
    """A call, and not the job itself or its arguments."""
    if not isinstance(call, Call):
        raise Invalid(f"{call!r} is not a call; write job.call(...) with its arguments")
    return call


class Call(Generic[R_co]):
    """A checked call with its id. Enqueueing it again after an `Unavailable` is safe: it is the same job."""

    __slots__ = ("_is_new", "app", "arguments", "has_drawn_id", "result_name", "spec")

    def __init__(
        self, app: HasStore, spec: JobSpec, arguments: Arguments, *, has_drawn_id: bool, result_name: str | None = None
    ) -> None:
        self.app = app
        self.spec = spec
        self.arguments = arguments
        self.has_drawn_id = has_drawn_id
        """True if the id was drawn for the call, and not given by the caller."""
        self.result_name = result_name
        """The argument that is PREVIOUS: the call is part of a chain, and not the first."""
        self._is_new = has_drawn_id

    @property
    def job_id(self) -> str:
        return self.spec.id

    def is_sent_first(self) -> bool:
        """True once, for an id that was drawn for this call: the store cannot know it yet."""
        is_new, self._is_new = self._is_new, False
        return is_new

    def check_alone(self) -> None:
        """Refuse a call that waits for a result, where no job is before it."""
        if self.result_name is not None:
            raise Invalid(
                f"{self.spec.kind}: argument {self.result_name!r} is PREVIOUS, and there is no job before this one: "
                "PREVIOUS is for the second and later calls of chain(...)"
            )

    def in_group(self, group_id: str) -> Self:
        """This call as a member of a group."""
        rules = self.spec.rules or Rules()
        if rules.group not in (None, group_id):
            raise Invalid(f"this call of {self.spec.kind} is a member of group {rules.group!r}: make another call")
        self.spec = replace(self.spec, rules=replace(rules, group=group_id))
        return self

    def template(self, role: str) -> ChainedJob:
        """The call as part of something that enqueues it later, under an id that is derived."""
        spec, rules = self.spec, self.spec.rules or Rules()
        if not self.has_drawn_id:
            raise Invalid(f"{spec.kind}, {role}, cannot have its own job_id: its id is derived")
        if spec.run_at is not None:
            raise Invalid(f"{spec.kind}, {role}, cannot have run_at: use delay, counted from when it is enqueued")
        if rules.group is not None:
            raise Invalid(f"{spec.kind}, {role}, cannot be a member of group {rules.group!r} by itself")
        if rules.chain:
            raise Invalid(f"{spec.kind}, {role}, cannot begin a chain")
        return ChainedJob(
            spec.queue,
            spec.kind,
            spec.payload,
            spec.lane,
            spec.priority,
            spec.delay_us,
            spec.policy,
            spec.headers,
            rules.unique,
            rules.limits,
            self.result_name,
        )

    def handle(self, store: Store, job_id: str, outcome: c.EnqueueOutcome | None = None) -> JobHandle[R_co]:
        """The handle of the job that this call became."""
        return JobHandle(store, job_id, self.arguments, outcome)

    def followup(self, hooks: Hooks) -> c.Followup:
        """The call as part of a commit; its id is derived from the committing job's (X6)."""
        self.check_alone()
        spec = self.spec
        if not self.has_drawn_id:
            raise Invalid(
                f"a follow-up {spec.kind} cannot have its own job_id: its id is derived from the committing job's"
            )
        return c.Followup(
            spec.queue,
            spec.kind,
            spec.payload,
            spec.lane,
            spec.priority,
            spec.run_at,
            spec.delay_us,
            spec.policy,
            hooks.follow_up_headers(spec.headers),
            spec.rules,
        )
