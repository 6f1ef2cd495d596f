"""Set the numbers of a limit, and clear what was set."""

from __future__ import annotations

from leasemill.dashboard.actions.queues import as_count, shown
from leasemill.dashboard.page_types import Done, Given, InputField, OperatorAction, PageContext, Question
from leasemill.errors import Invalid, NotFound
from leasemill.kernel.commands import LimitView
from leasemill.kernel.model import QUEUE_LIMIT, SECOND, LimitTerms
from leasemill.operator.wording import UNITS, limit_rate, numbers


def _limit(context: PageContext) -> LimitView:
    name = context.asked("name") or ""
    view = context.store.limit(name, limit=1)
    if view is None:
        raise NotFound(f"there is no limit {name!r}: no code declares it, and no operator has set it")
    return view


def _ask_set(context: PageContext) -> Question:
    view = _limit(context)
    own = view.record.set or LimitTerms()
    fields = [InputField("places", "Places", "number", shown(own.places), hint="jobs held at a time; 0 for none")]
    if not view.name.startswith(QUEUE_LIMIT):
        fields += [
            InputField("rate", "Rate", "text", rate_text(own), hint="50/s, 100/min, 5000/h, 1/d or 3/10s"),
            InputField("burst", "Burst", "number", shown(own.burst), hint="with a rate: how many may start at once"),
        ]
    sentences = [
        f"Now: {numbers(view.terms)}.",
        "What you set overrides the numbers in the code until it is cleared. An empty field changes nothing.",
        "Lowering it does not stop running jobs.",
    ]
    return Question(f"Set limit {view.name}", sentences, "Set", fields)


def _set(context: PageContext, given: Given) -> Done:
    view = _limit(context)
    rate, burst = as_limit_rate(given.text("rate")), as_count("Burst", given.text("burst"))
    if burst is not None and rate is None:
        raise Invalid("Burst: give the rate too")
    per = (None, None, None) if rate is None else (*rate, burst or 1)
    terms = LimitTerms(as_count("Places", given.text("places")), *per)
    context.store.set_limit(view.name, terms, by=given.by, reason=given.reason)
    return Done(f"Limit {view.name}: {numbers(_limit(context).terms)}.")


def _ask_clear(context: PageContext) -> Question:
    view = _limit(context)
    code = view.record.declared
    sentences = [
        f"Now: {numbers(view.terms)}.",
        "No code declares it, so the limit is removed."
        if code is None
        else f"The numbers from the code apply again: {numbers(code)}.",
    ]
    is_set = view.record.set is not None
    return Question(f"Clear limit {view.name}", sentences, "Clear", is_possible=is_set)


def _clear(context: PageContext, given: Given) -> Done:
    name = _limit(context).name
    context.store.clear_limit(name, by=given.by, reason=given.reason)
    return Done(
        f"Limit {name} cleared: the numbers from the code apply.", None if _is_known(context, name) else "/limits"
    )


def _is_known(context: PageContext, name: str) -> bool:
    return context.store.limit(name, limit=1) is not None


def as_limit_rate(text: str) -> tuple[int, int] | None:
    """Read a rate as a number of starts and a period in microseconds; None if it is empty."""
    return limit_rate(text) if text else None


def rate_text(terms: LimitTerms) -> str:
    """Write a rate as the form takes it. A period that is not a whole number of seconds is left out."""
    if terms.rate is None or terms.per_us is None:
        return ""
    if terms.per_us in UNITS:
        return f"{terms.rate}/{UNITS[terms.per_us]}"
    seconds, rest = divmod(terms.per_us, SECOND)
    return "" if rest else f"{terms.rate}/{seconds}s"


ACTIONS = (
    OperatorAction("set-limit", _ask_set, _set),
    OperatorAction("clear-limit", _ask_clear, _clear),
)
