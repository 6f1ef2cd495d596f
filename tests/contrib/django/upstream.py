"""Django's own tests of task backends, run on `LeasemillBackend`: python -m tests.contrib.django.upstream

They are part of Django's source distribution, which pip downloads: the version that is installed, 6.0 or later. Where
they name Django's dummy backend they get ours, which has enqueued; where they name the immediate one, ours with a
worker that has run what was enqueued. A test that does not apply is named here with the reason; the run fails if any
other does not pass, and if one of these does.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tarfile
import tempfile
import unittest
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import django
from django.conf import settings

DUMMY: Final = "test_dummy_backend.DummyBackendTestCase"
IMMEDIATE: Final = "test_immediate_backend.ImmediateBackendTestCase"

_OWN_LIST: Final = "it changes a result in the list that the dummy backend keeps"
_CAN_DO: Final = "it expects what the immediate backend cannot do, and ours can"
NOT_APPLICABLE: Final = {
    f"{DUMMY}.test_refresh_result": _OWN_LIST,
    f"{DUMMY}.test_refresh_result_async": _OWN_LIST,
    f"{IMMEDIATE}.test_cannot_get_result": _CAN_DO,
    f"{IMMEDIATE}.test_cannot_refresh_result": _CAN_DO,
    f"{IMMEDIATE}.test_cannot_pass_run_after": _CAN_DO,
    f"{IMMEDIATE}.test_throws_keyboard_interrupt": "a worker runs the task, and the caller is elsewhere",
}


def configure() -> None:
    settings.configure(
        SECRET_KEY="tests",
        USE_TZ=True,
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=["leasemill.contrib.django"],
        LEASEMILL={"URL": "memory:"},
    )
    django.setup()


def replace_backends() -> Callable[[], None]:
    """Returns what empties the store."""
    from django.tasks.backends import dummy, immediate  # noqa: PLC0415  (after the settings)

    from leasemill.contrib.django import LeasemillBackend, app  # noqa: PLC0415
    from leasemill.kernel import commands as c  # noqa: PLC0415
    from leasemill.testing.drain import drain, in_memory  # noqa: PLC0415

    store = ExitStack()

    def empty() -> None:
        store.close()
        store.enter_context(in_memory(app))

    class Enqueued(LeasemillBackend):
        @property
        def results(self) -> list[Any]:
            """Of all jobs, the oldest first."""
            jobs = app.store.jobs(c.JobFilter(), limit=1_000).jobs
            return [self.get_result(job.spec.id) for job in jobs]

        def clear(self) -> None:
            empty()

    class Run(LeasemillBackend):
        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            with ThreadPoolExecutor(1) as thread:  # as a worker is: not below the caller's event loop
                thread.submit(drain, app).result()
            result.refresh()
            return result

    vars(dummy).update(DummyBackend=Enqueued)
    vars(immediate).update(ImmediateBackend=Run)
    return empty


def download(folder: Path) -> None:
    """The tests of the Django that is installed, in this folder."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--no-binary", "django", "--dest", str(folder), f"django=={django.__version__}"], check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        for member in source.getmembers():
            path = Path(member.name)
            if member.isfile() and path.parts[1:3] == ("tests", "tasks"):
                member.name = str(Path(*path.parts[2:]))
                source.extract(member, folder, filter="data")


def tests_in(suite: unittest.TestSuite) -> Iterator[Any]:
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from tests_in(one)
        else:
            yield one


def main() -> None:
    if django.VERSION < (6, 0):
        sys.exit(f"Django {django.__version__} has no tests of task backends: run this with Python 3.12 or newer")
    configure()
    from django.test.utils import setup_test_environment  # noqa: PLC0415

    setup_test_environment()
    logging.getLogger("leasemill").setLevel(logging.CRITICAL)  # tasks that fail are part of the tests
    empty = replace_backends()
    empty()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        download(folder)
        sys.path.insert(0, temporary)
        suite = unittest.defaultTestLoader.discover(str(folder / "tasks"), top_level_dir=temporary)
        not_found = {f"tasks.{name}" for name in NOT_APPLICABLE}
        for test in tests_in(suite):
            test.addCleanup(empty)
            if test.id() in not_found:
                not_found.remove(test.id())
                test.__unittest_expecting_failure__ = True
        result = unittest.TextTestRunner().run(suite)
    print(f"Django {django.__version__}: {result.testsRun} tests, {len(result.expectedFailures)} not applicable")  # noqa: T201
    for name, reason in NOT_APPLICABLE.items():
        print(f"  {name}: {reason}")  # noqa: T201
    if not_found:
        sys.exit(f"not among Django's tests: {', '.join(sorted(not_found))}")
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
