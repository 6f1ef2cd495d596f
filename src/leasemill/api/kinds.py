"""`Kinds`: the jobs of an app by their kind, and the modules that declare them.

Modules of `App(include=...)` are imported when the kinds are first needed, not before: they import the app's module
themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from leasemill.api.job import JobType
from leasemill.api.limits import declared_terms
from leasemill.errors import Invalid
from leasemill.kernel.bounds import check_name
from leasemill.kernel.model import LimitTerms


class Kinds:
    """The declared jobs by kind, and the modules that are still to be imported."""

    def __init__(self, include: Iterable[str]) -> None:
        self.include = listed_names("include", include)
        self._is_loaded = not self.include
        self._importing: set[int] = set()
        self._jobs: dict[str, JobType[..., Any]] = {}
        self._handlers: dict[str, JobType[..., Any]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def jobs(self) -> Mapping[str, JobType[..., Any]]:
        """Every declared job, by its kind."""
        self.load()
        return MappingProxyType(self._jobs)

    @property
    def handlers(self) -> Mapping[str, JobType[..., Any]]:
        """Every declared job, by its kind and by its aliases."""
        self.load()
        return MappingProxyType(self._handlers)

    @property
    def limits(self) -> dict[str, LimitTerms]:
        """The numbers of every declared limit, by its name."""
        return declared_terms({kind: job.limits for kind, job in self.jobs.items()})

    def load(self) -> None:
        """Import the modules of `include`, if that is not done. Other callers wait for the import.

        No lock of ours is held: a module that is being imported may ask for the kinds, and finds those there are.
        """
        thread = threading.get_ident()
        if self._is_loaded or thread in self._importing:
            return
        self._importing.add(thread)
        try:
            for name in self.include:
                _import(name)
            self._is_loaded = True
        finally:
            self._importing.discard(thread)

    def add(self, job: JobType[..., Any]) -> None:
        check_name("kind", job.kind)
        for kind in (job.kind, *job.aliases):
            known = self._handlers.get(kind)
            if known is not None and _identity(known.function) != _identity(job.function):
                raise Invalid(
                    f"kind {kind!r} is declared twice, by {_identity(known.function)} and "
                    f"{_identity(job.function)}; give one of them another name with @app.job(name=...)"
                )
        declared_terms({kind: one.limits for kind, one in {**self._jobs, job.kind: job}.items()})
        self._jobs[job.kind] = job
        self._handlers.update(dict.fromkeys((job.kind, *job.aliases), job))


def listed_names(what: str, names: Iterable[str]) -> tuple[str, ...]:
    """A list of names, and not the letters of one."""
    if isinstance(names, str):
        raise Invalid(f"{what} is a string, {names!r}; write a list: [{names!r}]")
    return tuple(names)


def _import(name: Any) -> None:
    if not isinstance(name, str) or not all(name.split(".")):
        raise Invalid(f"App(include=[{name!r}]): write the full name of a module, for example 'shop.jobs'")
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise Invalid(
            f"App(include=[{name!r}]): there is no module {error.name!r} here; write the full name of a module that "
            "can be imported"
        ) from None


def _identity(function: Callable[..., Any]) -> str:
    """The same function again (its module was loaded again) may be declared again."""
    code = function.__code__
    return f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"
