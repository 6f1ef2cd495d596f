"""What a page and an action are, and what they are called with.

A page is a module in `pages/`, a template, and a row in `pages.PAGES`; an action is a row in `actions.ACTIONS`. Both
are plain functions of a `PageContext`, called in a thread: they may call the store as they like, but every reading must
be bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from starlette.datastructures import QueryParams

from leasemill.api.redaction import Redaction
from leasemill.dashboard.access import Principal
from leasemill.dashboard.bulk_actions import BulkActions
from leasemill.dashboard.forms import Form
from leasemill.dashboard.sampler import Sample, Sampler
from leasemill.errors import NotFound
from leasemill.kernel.commands import QueueView
from leasemill.operator.facts import AtWork, at_work
from leasemill.operator.listing import find_queue
from leasemill.store.base import Store

FoundT = TypeVar("FoundT")


@dataclass(frozen=True, slots=True)
class PageContext:
    """One request, as pages and actions see it."""

    store: Store
    sampler: Sampler
    bulk_actions: BulkActions
    redaction: Redaction
    principal: Principal
    query: QueryParams
    """The fields after `?` in the URL: the state of the page."""
    params: Mapping[str, Any]
    """The fields in the path."""

    @property
    def sample(self) -> Sample | None:
        """The latest counts, shared by all viewers; None if nothing has been counted yet."""
        return self.sampler.latest

    def asked(self, name: str) -> str | None:
        """Return a field of the URL; None if it is missing or empty."""
        return (self.query.get(name) or "").strip() or None

    def number(self, name: str, default: int = 0) -> int:
        text = self.query.get(name, "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else default

    def queues(self) -> dict[str, QueueView]:
        """Return the queues of the latest count: counting one of a large store takes too long for a page."""
        return {} if self.sample is None else {one.name: one for one in self.sample.queues}

    def queue(self, name: str) -> QueueView:
        found = self.queues().get(name) or find_queue(self.store, name)
        if found is None:
            raise NotFound(f"there is no queue {name!r}")
        return found

    def once(self, key: Hashable, read: Callable[[], FoundT]) -> FoundT:
        """Return what `read` returns. It is called once for each sample. `key`: the page, and what it depends on."""
        return self.sampler.page_cache.once(key, 0 if self.sample is None else self.sample.number, read)

    def at_work(self) -> list[AtWork]:
        """Return the workers with a recent heartbeat."""
        return at_work(self.store.presence)


Read: TypeAlias = Callable[[PageContext], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Page:
    """A row in the table of pages. `section`: its part of the navigation; None if only links lead to it."""

    name: str
    path: str
    title: str
    template: str
    read: Read
    section: str | None = None
    is_live: bool = True
    is_sampled: bool = False
    """It shows the shared sample and nothing else, so it is rendered once for all who look the same way."""
    is_estimated: bool = False
    """It shows what is known of a sample between counts, so nothing has to be read for it."""


@dataclass(frozen=True, slots=True)
class InputField:
    """A field that an action asks for besides the reason. `kind`: text, number, select, checkbox, or hidden: what was
    so when the question was asked."""

    name: str
    label: str
    kind: str = "text"
    value: str = ""
    options: tuple[tuple[str, str], ...] = ()
    """The values of a select, and how they are shown."""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """The question before an action: what it is about, and what it would do."""

    heading: str
    sentences: list[str]
    button: str
    fields: list[InputField] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)
    """Ids of some jobs that it applies to."""
    is_possible: bool = True


@dataclass(frozen=True, slots=True)
class Given:
    """The operator's answers. The rest is in the URL, as it was when the question was asked."""

    by: str
    reason: str
    form: Form

    def text(self, name: str) -> str:
        return self.form.get(name, "").strip()


@dataclass(frozen=True, slots=True)
class Done:
    """The result of an action, in a sentence. `path`: where to go, by default where the operator came from."""

    sentence: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class OperatorAction:
    """A row in the table of actions: GET asks, POST does it, both with the same URL."""

    name: str
    ask: Callable[[PageContext], Question]
    run: Callable[[PageContext, Given], Done]
    is_dangerous: bool = False
    asks_why: bool = True
    """A reason is recorded with an action that changes the store; others need none."""
