"""A web application that answers at once and leaves the work to jobs.

`POST /reports` enqueues and gives an id; `GET /reports/{id}` says how the job stands. The id can be the client's
(`Idempotency-Key`): a request that is sent twice makes one job.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException
from pydantic import BaseModel

from leasemill import App, Context, JobConflict, NotFound, Unavailable

jobs = App()


@jobs.job(queue="reports", lease="heavy")
def make_report(ctx: Context, customer: str, months: int) -> str:
    """A plain function: it runs in a thread of the worker, not of the web server."""
    for month in range(months):
        ctx.progress(month, months, "adding up")
    return f"{customer}: {months} months"


class ReportRequest(BaseModel):
    customer: str
    months: int = 12


class Report(BaseModel):
    id: str
    state: str
    result: str | None = None
    error: str | None = None


@asynccontextmanager
async def lifespan(_web: FastAPI) -> AsyncIterator[None]:
    yield
    jobs.close()


web = FastAPI(lifespan=lifespan)


@web.post("/reports", status_code=202)
async def ask_for_report(
    asked: ReportRequest, idempotency_key: Annotated[str | None, Header(max_length=200)] = None
) -> Report:
    """The job is on disk when this answers."""
    job = make_report if idempotency_key is None else make_report.options(job_id=idempotency_key)
    try:
        handle = await job.aenqueue(asked.customer, asked.months)
    except JobConflict:
        raise HTTPException(409, "this Idempotency-Key was used for another report") from None
    except Unavailable:
        raise HTTPException(503, "not taken on: ask again, with the same Idempotency-Key") from None
    return Report(id=handle.id, state=await handle.astatus())


@web.get("/reports/{job_id}")
async def report(job_id: str) -> Report:
    try:
        record = await jobs.handle(job_id).arecord()
    except NotFound:
        raise HTTPException(404, "no such report (any more)") from None
    result = await jobs.handle(job_id).aresult() if record.state == "succeeded" else None
    error = record.executions[-1].error if record.executions else None
    return Report(id=job_id, state=record.state, result=result, error=error)
