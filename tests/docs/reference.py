"""The page about the public names, made from signatures and docstrings: `python -m tests.docs.reference` writes it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

import leasemill
from leasemill.api.options import EnqueueOptions
from leasemill.api.schedules import CronOptions
from tests.docs.pages import ROOT

PAGE: Final = ROOT / "docs" / "reference" / "python.md"
HEAD: Final = """# Python

Every public name of `leasemill`, made from the code (`python -m tests.docs.reference`). All of them are imported from
`leasemill` itself. The [guides](../README.md) show them in use.

A *duration* is a number of seconds or a `timedelta`. Methods that wait or use the store have a twin for async code,
named beside them. `job.using(connection)`, commits and effects have guides of their own: [Commit](../guides/commit.md),
[Effects](../guides/effects.md).
"""
PARTS: Final[dict[str, list[str]]] = {
    "Declare and enqueue": ["App", "JobType", "SyncJob", "AsyncJob", "SyncContextJob", "AsyncContextJob", "Call"],
    "Settings of a job": ["Retry", "FixedLane", "Limit", "Rate", "Unique", "Debounce", "Throttle"],
    "In a handler": ["Context", "Transaction", "AsyncTransaction", "Fail", "RetryAfter", "Release", "Throttled"],
    "Jobs that were enqueued": ["JobHandle", "JobState", "JobProgress", "StreamCount"],
    "Chains and groups": ["chain", "PREVIOUS", "Chain", "ChainHandle", "GroupHandle", "GroupProgress"],
    "Schedules": ["next_ticks", "ScheduleInfo"],
    "Workers": ["Worker", "configure_logging"],
    "Hooks and observers": ["Outgoing", "JobEvent", "Observer", "Settled"],
    "Offsets of a stream": ["WorkLease", "AcquireStatus", "SucceedStatus", "FailStatus"],
    "The store": ["open_store", "Store", "ONCE_TABLE_SQL", "__version__"],
    "What a store returns, and takes": [
        *["JobFilter", "JobPage", "Job", "Operated", "QueueView", "LaneView", "LanePage", "LeaseView", "GroupView"],
        *["LimitView", "KeyView", "Totals", "Action", "Policy", "LimitTerms", "Order"],
    ],
    "Errors": [],
}
CONSTANTS: Final = {
    "ONCE_TABLE_SQL": "The SQL that creates the table which `ctx.once` writes to.",
    "PREVIOUS": "As an argument of a call in a chain: the result of the job before it.",
    "__version__": "The version of Leasemill.",
}
INTERNAL: Final = {
    "App": {"run_hooks", "handlers", "entered_lifespan"},
    "Call": {"is_sent_first", "check_alone", "in_group", "template", "handle", "followup"},
    "Chain": {"handle"},
    "JobType": {"around_hooks", "followup_call"},
    "JobHandle": {"ended_by", "aended_by", "result_of"},
    "Worker": {"retire", "facts", "run_in"},
    "Retry": {"policy", "over"},
    "Limit": {"terms"},
    "Rate": {"terms"},
    "Debounce": {"key", "wait_us", "at_most_us"},
    "Unique": {"key"},
    "Throttle": {"key"},
    "Context": {"has_committed_without_result"},
    "JobEvent": {"log_fields"},
    "Transaction": {"enqueue_call", "settle_ids"},
    "AsyncTransaction": {"enqueue_call", "settle_ids"},
    "Store": {
        *{"ack_and_claim", "ack_then_acquire", "block", "joined_block", "keep_up", "pulse", "using", "watch"},
        *{"watch_cancellations", "watch_end", "due_in", "adue_in", "order", "aorder"},
        *{"declare_limits", "adeclare_limits", "prune", "aprune"},
    },
}
"""What one part of Leasemill uses of another, and users do not."""
DECLARED: Final = {"SyncJob", "AsyncJob", "SyncContextJob", "AsyncContextJob"}
"""What `@app.job` returns, each for one shape of handler; their members are those of JobType, and an app's hooks."""
HANDED_OUT: Final = {"JobType", *DECLARED, "Call", "Context", "Transaction", "AsyncTransaction"} | {
    "JobHandle",
    "Chain",
    "ChainHandle",
    "GroupHandle",
    "Store",
}
"""Users do not make these."""
DETAILED: Final = {"App": ["job", "cron", "group"], "JobType": ["options", "using"], "Context": ["commit", "once"]}
"""Methods whose whole docstring is shown."""
LINE_LENGTH: Final = 100
OPTIONS: Final[dict[str, Any]] = {"Unpack[CronOptions]": CronOptions, "Unpack[EnqueueOptions]": EnqueueOptions}


def page() -> str:
    parts = [HEAD]
    for title, names in PARTS.items():
        parts.append(f"## {title}\n")
        parts += [_entry(name, getattr(leasemill, name)) for name in names]
    return "\n".join([*parts, _errors()])


def errors() -> dict[str, type[BaseException]]:
    found = {name: getattr(leasemill, name) for name in leasemill.__all__}
    return {name: it for name, it in found.items() if isinstance(it, type) and issubclass(it, leasemill.LeasemillError)}


def _errors() -> str:
    def rows(error: type[BaseException], depth: int) -> Iterator[str]:
        yield f"| {'&nbsp;' * 4 * depth}`{error.__name__}` | {_sentence(error)} |"
        for one in known.values():
            if one.__bases__[0] is error:
                yield from rows(one, depth + 1)

    known = errors()
    return "\n".join(["| error | |", "|---|---|", *rows(leasemill.LeasemillError, 0)]) + "\n"


def _entry(name: str, it: Any) -> str:
    if name in CONSTANTS:
        return f"### {name}\n\n{CONSTANTS[name]}\n"
    if isinstance(it, type) and issubclass(it, Enum):
        return f"### {name}\n\n{_text(it)}\n\n{', '.join(f'`{one.name}`' for one in it)}\n"
    if not isinstance(it, type):
        return f"### {name}\n\n{_block(f'{name}{_signature(it)}')}{_text(it)}\n"
    signature = "" if name in HANDED_OUT else _block(_class(name, it))
    members = [] if name in DECLARED else list(_members(name, it))
    table = "\n".join(["", "| | |", "|---|---|", *members, ""]) if members else ""
    return f"### {name}\n\n{signature}{_text(it)}\n{table}{''.join(_details(name, it))}"


def _details(name: str, it: type) -> Iterator[str]:
    for key in DETAILED.get(name, ()):
        method = getattr(it, key)
        yield f"\n#### {name}.{key}\n\n{_block(f'{key}{_signature(method, returns=False)}')}{_text(method)}\n"


def _block(call: str) -> str:
    """A call, with a line for each parameter if it is long."""
    if len(call) > LINE_LENGTH:
        head, _, rest = call.partition("(")
        inside, _, tail = rest.rpartition(")")
        parameters = re.split(r", (?![^\[(]*[\])])", inside)  # not inside of brackets
        call = f"{head}(\n    " + ",\n    ".join(parameters) + f",\n){tail}"
    return f"```text\n{call}\n```\n\n"


def _class(name: str, it: type) -> str:
    try:
        return f"{name}{_signature(it, returns=False)}"
    except ValueError:
        return f"{name}()"


def _members(name: str, it: type) -> Iterator[str]:
    """What its own class defines and documents, or a base that is not public; a twin for async code beside its own."""
    inherited = {base for base in it.__mro__[1:] if base.__name__ in leasemill.__all__}
    hidden = INTERNAL.get(name, set()).union(*(INTERNAL.get(base.__name__, set()) for base in inherited))
    owners = [base for base in it.__mro__ if base.__module__.startswith("leasemill.") and base not in inherited]
    found: dict[str, Any] = {}
    for base in owners:
        found |= {key: value for key, value in vars(base).items() if key[0] != "_" and key not in found}
    shown = {key: value for key, value in found.items() if key not in hidden and inspect.getdoc(value)}
    twins = {key: twin for key in shown if (twin := "await_end" if key == "wait" else f"a{key}") in shown}
    for key, value in shown.items():
        if key in twins.values() or not (inspect.isfunction(value) or isinstance(value, property)):
            continue
        call = _signature(value).replace("|", "\\|") if inspect.isfunction(value) else ""
        if key in DETAILED.get(name, ()):
            call = "(…)"
        twin = f" (async: `{twins[key]}`)" if key in twins else ""
        yield f"| `{key}{call}` | {_sentence(value)}{twin} |"


def _signature(it: Any, *, returns: bool = True) -> str:
    signature = inspect.signature(it)
    given = [one for one in signature.parameters.values() if one.name != "self"]
    options = OPTIONS.get(str(given[-1].annotation)) if given else None
    shown = signature.replace(
        parameters=[one.replace(annotation=_shown(one.annotation)) for one in (given[:-1] if options else given)],
        return_annotation=_shown(signature.return_annotation) if returns else inspect.Signature.empty,
    )
    if options is None:
        return re.sub(r"<(\w+\.\w+): [^>]*>", r"\1", str(shown))  # members of an Enum
    named = [f"{name}: {_shown(str(one.__forward_arg__))} = ..." for name, one in options.__annotations__.items()]
    return str(shown).replace(")", f"{', ' if given[:-1] else ''}*, {', '.join(named)})", 1)


class _Name:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def _shown(annotation: object) -> object:
    """An annotation as it was written, with the words of this page."""
    if annotation is inspect.Signature.empty or annotation is None:
        return annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", text)  # modules
    return _Name(text.replace("Duration", "duration").replace("R_co", "R"))


def _text(it: Any) -> str:
    return re.sub(r" \((?:[A-Z]\d+(?:, )?)+\)", "", inspect.getdoc(it) or "")  # without the contract's rules


def _sentence(it: Any) -> str:
    """The first paragraph, for a table."""
    first = _text(it).partition("\n\n")[0]
    return re.sub(r"\s+", " ", first).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
