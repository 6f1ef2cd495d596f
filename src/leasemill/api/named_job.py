"""Jobs by name, for programs that do not have the handler's code: `app.named(kind, queue=...)`.

A kind that this app does not declare has no signature here: its arguments are encoded as they are, and whether they fit
is decided by the worker that claims the job. What a declaration computes from them does not apply: a lane or a unique
key must be set with `.options(...)`, and the kind's limits do not apply to such a job.
"""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec

from leasemill.api.arguments import NO_ARGUMENTS, PREVIOUS, Arguments, argument_sentence
from leasemill.api.call import HasStore
from leasemill.api.context import Context
from leasemill.api.hooks import Hooks
from leasemill.api.job import JobType
from leasemill.api.json_types import ENCODING_ERRORS, encode_json, json_type
from leasemill.api.round_trip import non_finite
from leasemill.api.type_errors import Unfit
from leasemill.errors import Invalid
from leasemill.kernel.bounds import check_name
from leasemill.kernel.model import Policy


class UncheckedArguments(Arguments):
    """The arguments of a kind whose signature is not known: any, by keyword."""

    def __init__(self, kind: str) -> None:
        super().__init__(_anything, Context)
        self.name = kind

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
        if args:
            raise Invalid(
                f"{self.name}: this app does not declare it, so its parameters are not known: pass each by name"
            )
        for name, value in kwargs.items():
            if (found := non_finite(value)) is not None:
                raise Invalid(argument_sentence(self.name, name, *found))
        try:
            return encode_json(kwargs) if kwargs else NO_ARGUMENTS, kwargs
        except ENCODING_ERRORS:
            return encode_json({name: self._by_its_type(name, value) for name, value in kwargs.items()}), kwargs

    def _by_its_type(self, name: str, value: object) -> msgspec.Raw:
        """An argument as a parameter of its own type would carry it, such as a Pydantic model."""
        try:
            return msgspec.Raw(json_type(f"argument {name!r} of {self.name}", type(value)).encode(value)[0])
        except Unfit as error:
            raise Invalid(argument_sentence(self.name, name, error.at, error.text)) from None

    def encode_without_previous(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bytes, dict[str, Any], str]:
        names = [name for name, value in kwargs.items() if value is PREVIOUS]
        if len(names) != 1:
            raise Invalid(f"{self.name}: pass PREVIOUS as one argument, by its name")
        payload, values = self.encode(args, {name: value for name, value in kwargs.items() if value is not PREVIOUS})
        return payload, values, names[0]


def named_job(app: HasStore, kind: str, queue: str, hooks: Hooks) -> JobType[..., Any]:
    """A kind that is declared elsewhere."""
    check_name("kind", kind)
    check_name("queue", queue)
    return JobType(
        app,
        _anything,
        UncheckedArguments(kind),
        kind=kind,
        aliases=(),
        queue=queue,
        lane=None,
        priority=0,
        policy=Policy(),
        is_async=False,
        hooks=hooks,
    )


def unknown_kind(kind: str, known: list[str]) -> NoReturn:
    declared = ", ".join(known) or "none"
    raise Invalid(
        f"this app does not declare {kind!r} (declared: {declared}): if another program declares it, pass the "
        "queue that its workers serve, queue=..."
    )


def _anything() -> Any:
    """Its handler is in another program."""
