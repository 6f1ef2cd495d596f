"""What `instrument` takes, and what telemetry must not do."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap

import pytest
from opentelemetry.context import Context as OtelContext
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider

from leasemill import App, Context, Invalid, JobState
from leasemill.contrib.otel import instrument
from tests.contrib.otel.support import Recorded
from tests.worker.support import drained


class Breaks(SpanProcessor):
    """Code of the user's in the SDK."""

    def __init__(self, where: str) -> None:
        self._where = where

    def on_start(self, span: Span, parent_context: OtelContext | None = None) -> None:
        if self._where == "start":
            raise RuntimeError("the processor is broken")

    def on_end(self, span: ReadableSpan) -> None:
        if self._where == "end":
            raise RuntimeError("the processor is broken")


@pytest.mark.parametrize("where", ["start", "end"])
async def test_telemetry_that_fails_changes_nothing_for_jobs(where: str, caplog: pytest.LogCaptureFixture) -> None:
    app, provider = App("memory:"), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Breaks(where))
    instrument(app, tracer_provider=provider)

    @app.job(name="async")
    async def run_async(ctx: Context) -> int:
        async with ctx.commit() as tx:
            tx.enqueue(run_sync)
            tx.set_result(7)
        return 7

    @app.job(name="sync")
    def run_sync() -> None: ...

    with caplog.at_level(logging.ERROR):
        handles = [run_async.enqueue(), run_async.enqueue()]
        await drained(app)
    assert [handle.status() for handle in handles] == [JobState.SUCCEEDED] * 2
    assert [handle.result() for handle in handles] == [7, 7]
    ours = sorted(record.message.partition(",")[0] for record in caplog.records if record.name == "leasemill.otel")
    assert ours == [f"OpenTelemetry failed to record {what}" for what in ("a commit", "an attempt", "an enqueue")]
    app.close()


async def test_an_exception_without_a_text_fails_its_job_and_nothing_else(recorded: Recorded) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    app = App("memory:")
    recorded.instrument(app)

    @app.job(retry=0)
    async def run() -> None:
        raise Mute

    handle = run.enqueue()
    await drained(app)
    (execution,) = handle.record().executions
    assert "Mute" in (execution.error or "")
    app.close()


def test_an_app_is_instrumented_once(app: App) -> None:
    with pytest.raises(Invalid, match="instrumented already"):
        instrument(app)
    with pytest.raises(Invalid, match="instrument takes"):
        instrument("app")  # type: ignore[arg-type]


def ran(program: str, *hidden: str) -> str:
    """What a program prints in an interpreter that does not have these packages."""
    hide = "".join(f"sys.modules[{name!r}] = None\n" for name in hidden)
    completed = subprocess.run(
        [sys.executable, "-c", f"import sys\n{hide}{textwrap.dedent(program)}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.strip()


def test_without_an_sdk_nothing_is_recorded_and_nothing_breaks() -> None:
    program = """
    from leasemill import App, Context, Worker
    from leasemill.contrib.otel import instrument
    app = App("memory:")
    instrument(app)
    @app.job
    async def run(ctx: Context) -> str:
        async with ctx.commit() as tx:
            tx.set_result(str(dict(ctx.headers)))
        return ""
    handle = run.enqueue()
    Worker(app, drain=True).run_sync()
    print(handle.result(), [name for name in sys.modules if name.startswith("opentelemetry.sdk.")])
    """
    assert ran(program, "opentelemetry.sdk") == "{} []"


def test_without_the_api_the_import_says_what_to_install() -> None:
    program = """
    import leasemill
    try:
        import leasemill.contrib.otel
    except ImportError as error:
        print(error)
    """
    assert ran(program, "opentelemetry.trace").endswith("pip install 'leasemill[otel]'")


def test_leasemill_does_not_import_opentelemetry() -> None:
    program = """
    from leasemill import App, Context, Worker
    import leasemill.cli
    app = App("memory:")
    @app.job
    async def run(ctx: Context) -> None: ...
    run.enqueue()
    Worker(app, drain=True).run_sync()
    print([name for name in sys.modules if name.startswith("opentelemetry")])
    """
    assert ran(program) == "[]"
