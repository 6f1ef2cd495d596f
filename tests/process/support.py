"""Where a process test takes place: a folder of jobs, worker processes on it, and what they left behind."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from leasemill import JobHandle, JobState
from leasemill.demo.trail import TRAIL_VARIABLE, Trail
from leasemill.kernel.model import Job
from leasemill.kernel.verbs.commit import followup_id
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from tests.lab.processes import IMPORT_PATH, WorkerProcess, wait_until
from tests.process import jobs

ROOT = Path(__file__).resolve().parents[2]


class Scene:
    """A store, its workers (gone with the scene), the marks of their handlers."""

    def __init__(self, url: str, folder: Path, cleaning: ExitStack) -> None:
        self.url = url
        self.folder = folder
        self.trail = Trail(folder / "trail")
        self._cleaning = cleaning
        self.store: Store = open_store(url)
        cleaning.callback(self.store.close)
        for app in (jobs.app, jobs.patient):
            cleaning.enter_context(app.bound_to(self.store))

    def worker(
        self,
        name: str,
        *options: str,
        app: str = "app",
        target: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> WorkerProcess:
        worker = WorkerProcess(
            target or f"tests.process.jobs:{app}",
            url=self.url,
            log=self.folder / f"{name}.log",
            worker_id=name,
            options=options,
            folder=self.folder,
            environment={
                TRAIL_VARIABLE: str(self.trail.path),
                "PYTHONPATH": IMPORT_PATH,
                **(environment or {}),
            },
        )
        return self._cleaning.enter_context(worker)

    def open_gate(self, name: str) -> None:
        jobs.gate(self.trail, name).touch()

    # Waiting

    def await_began(self, handle: JobHandle[Any], worker: WorkerProcess, limit_s: float = 60) -> None:
        def has_begun() -> bool:
            worker.check_running()
            return bool(self.trail.marks("began", worker=worker.id, job=handle.id))

        wait_until(has_begun, f"{worker.id} to begin {handle.id}", limit_s)

    def await_state(self, handle: JobHandle[Any], state: JobState = JobState.SUCCEEDED, limit_s: float = 60) -> Job:
        wait_until(lambda: handle.status() is state, f"{handle.id} to be {state}", limit_s)
        return handle.record()

    def await_logged(self, worker: WorkerProcess, text: str, limit_s: float = 60, **fields: object) -> None:
        wait_until(lambda: worker.has_logged(text, **fields), f"{worker.id} to log {text!r}", limit_s)

    def still_works(self, limit_s: float = 60) -> None:
        """Other jobs go on."""
        handle = jobs.bystander.enqueue()
        self.await_state(handle, limit_s=limit_s)
        self.check_applied_once(handle)

    # What came of it

    def check_applied_once(self, handle: JobHandle[Any], by: WorkerProcess | str | None = None) -> Job:
        """One commit on record, one handler that knows, one receipt, and all of them name the same run."""
        job = self.await_state(handle)
        committed = [execution for execution in job.executions if execution.committed_at is not None]
        marks = self.trail.marks("committed", job=handle.id)
        assert len(committed) == 1
        assert [(mark.worker, mark.attempt) for mark in marks] == [(committed[0].worker, committed[0].attempt)]
        assert job.result == msgspec.json.encode(committed[0].worker)
        assert self.store.job(followup_id(handle.id, 0)) is not None
        assert self.store.job(followup_id(handle.id, 1)) is None
        if by is not None:
            assert committed[0].worker == (by if isinstance(by, str) else by.id)
        return job

    def check_not_applied(self, handle: JobHandle[Any]) -> Job:
        job = handle.record()
        assert [execution for execution in job.executions if execution.committed_at is not None] == []
        assert self.trail.marks("committed", job=handle.id) == []
        assert self.store.job(followup_id(handle.id, 0)) is None
        return job
