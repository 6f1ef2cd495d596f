"""Log lines, for people and for machines."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasemill import App, Context, __version__
from leasemill.api import logs
from leasemill.testing.drain import drain


@pytest.fixture
def untouched_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(log_format: logs.LogFormat, app: App) -> list[str]:
    stream = io.StringIO()
    logs.configure_logging(log_format, "INFO", stream)
    drain(app)
    return stream.getvalue().splitlines()


def talking_app() -> App:
    app = App("memory:")

    @app.job
    async def talks(ctx: Context) -> None:
        await asyncio.sleep(0)
        logging.getLogger("mine").info("from %s", "my own logger", extra={"rows": 3})

    @app.job
    def talks_in_thread(ctx: Context) -> None:
        ctx.logger.warning("from the job's logger")

    talks.options(job_id="t-1").enqueue()
    talks_in_thread.options(job_id="t-2").enqueue()
    return app


@pytest.mark.usefixtures("untouched_root")
def test_json_lines_carry_the_job_whatever_logger_wrote_them() -> None:
    written = [json.loads(line) for line in lines("json", talking_app())]
    (own,) = [line for line in written if line["logger"] == "mine"]
    assert own["message"] == "from my own logger"
    assert (own["level"], own["job"], own["kind"], own["attempt"], own["rows"]) == ("info", "t-1", "talks", 1, 3)
    assert own["at"].endswith("Z")
    (threaded,) = [line for line in written if line["logger"] == "leasemill.job"]
    assert (threaded["job"], threaded["worker"]) == ("t-2", own["worker"])
    started = written[0]
    served = "queues default, kinds talks, talks_in_thread, 10 slots"
    sentence = f"worker started: leasemill {__version__}, store memory:, {served}"
    assert (started["message"], started["worker"]) == (sentence, own["worker"])
    assert (started["version"], started["store"], started["slots"]) == (__version__, "memory:", 10)
    assert (started["queues"], started["kinds"]) == (["default"], ["talks", "talks_in_thread"])
    assert "job" not in started


@pytest.mark.usefixtures("untouched_root")
def test_every_line_of_a_process_that_is_one_workers_carries_its_id() -> None:
    stream = io.StringIO()
    logs.configure_logging("json", "INFO", stream, worker_id="mill-1")
    in_thread = threading.Thread(target=logging.getLogger("leasemill.wal").warning, args=["from a thread of the store"])
    in_thread.start()
    in_thread.join()
    logging.getLogger("leasemill.worker").info("of another", extra={"worker": "mill-2"})
    written = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["message"], line["worker"]) for line in written] == [
        ("from a thread of the store", "mill-1"),
        ("of another", "mill-2"),
    ]


@pytest.mark.usefixtures("untouched_root")
def test_text_lines_end_with_their_fields() -> None:
    (line,) = [line for line in lines("text", talking_app()) if "my own" in line]
    assert " INFO    from my own logger  [worker=" in line
    assert line.endswith("job=t-1 kind=talks attempt=1 rows=3]")


@pytest.mark.usefixtures("untouched_root")
@pytest.mark.parametrize("formatter", [logs.JsonFormatter(), logs.TextFormatter()])
def test_exceptions_are_written_out_and_odd_values_as_text(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("no")
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "it broke", (), (ValueError, error, error.__traceback__))
    record.odd = {1, object}
    text = formatter.format(record)
    assert "it broke" in text
    assert "ValueError: no" in text


@pytest.mark.usefixtures("untouched_root")
def test_the_start_line_names_the_folder_in_full_and_a_bounded_number_of_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with App("file:./jobs") as app:
        for number in range(30):
            app.job(name=f"kind-{number:02}")(lambda: None)
        (started,) = [line for line in lines("text", app) if "worker started" in line]
    assert f"store file:{tmp_path}/jobs, queues default, kinds kind-00, kind-01," in started
    assert "kind-19 and 10 more, 10 slots" in started


@pytest.mark.usefixtures("untouched_root")
def test_a_folder_that_becomes_a_new_store_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = []
    for _ in range(2):
        with App("file:./jobs") as app:
            app.job(name="nothing")(lambda: None)
            found.append([line for line in lines("text", app) if line.endswith(f" {tmp_path}/jobs is a new store")])
    assert [len(made) for made in found] == [1, 0]


@pytest.mark.usefixtures("untouched_root")
@pytest.mark.parametrize("log_format", ["json", "text"])
def test_lines_carry_the_headers_of_their_job_whatever_logger_wrote_them(log_format: logs.LogFormat) -> None:
    app = App("memory:")

    @app.job
    def talks(ctx: Context) -> None:
        ctx.logger.info("from the job's logger")
        logging.getLogger("mine").info("from my own logger")

    talks.options(headers={"tenant": "acme"}).enqueue()
    talks.enqueue()
    with_headers = ("from the job's logger", "from my own logger", "talks succeeded")
    written = [line for line in lines(log_format, app) if any(text in line for text in with_headers)]
    assert len(written) == 6
    if log_format == "json":
        headers = [json.loads(line).get("headers") for line in written]
        assert (headers.count({"tenant": "acme"}), headers.count(None)) == (3, 3)
    else:
        assert sum("header.tenant=acme" in line for line in written) == 3
        assert not any("headers=" in line for line in written)


FORGED = "2030-01-01T00:00:00.000Z ERROR   forged"
HOSTILE = {
    "a line": f"a]\n{FORGED}",
    "a carriage return": f"a\r{FORGED}",
    "a terminal": "\x1b[2J\x1b[31mred",
    "a terminal of 8 bits": "\x9b31mred",
    "a separator": f"a\u2028{FORGED}\x85{FORGED}\x0b{FORGED}\x0c{FORGED}",
    "another direction": "\u202egnp.exe\u2066",
    "a bell, a delete, a backspace": "\x07\x7f\x08",
}


@pytest.mark.usefixtures("untouched_root")
@pytest.mark.parametrize("log_format", ["json", "text"])
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_text_of_another_begins_a_line_or_drives_a_terminal(log_format: logs.LogFormat, text: str) -> None:
    """Wherever it stands: in a header, a message, a field, an exception."""
    app = App("memory:", retry=0)

    @app.job(name="fails")
    def fails(ctx: Context) -> None:
        logging.getLogger("mine").info("so says %s", text, extra={"given": text})
        raise RuntimeError(text)

    fails.options(headers={"x": text}).enqueue()
    stream = io.StringIO()
    logs.configure_logging(log_format, "DEBUG", stream)
    drain(app)
    logging.getLogger("mine").error("failed", exc_info=RuntimeError(text))
    written = stream.getvalue()
    assert "so says" in written
    assert not {one for one in written if not one.isprintable()} - {"\n"}
    assert not [line for line in written.splitlines() if line.startswith(FORGED)]
    if log_format == "json":
        (said,) = [line for line in map(json.loads, written.splitlines()) if "so says" in line["message"]]
        assert (said["message"], said["given"], said["headers"]) == (f"so says {text}", text, {"x": text})
    else:
        lines_of_records = [line for line in written.splitlines() if not line.startswith("  ")]
        assert all(line[:4].isdigit() and line[23] == "Z" for line in lines_of_records)


@pytest.mark.usefixtures("untouched_root")
@pytest.mark.parametrize("log_format", ["json", "text"])
def test_headers_that_look_like_secrets_are_not_logged(log_format: logs.LogFormat) -> None:
    app = App("memory:")

    @app.job
    def talks(ctx: Context) -> None:
        ctx.logger.info("from the job's logger")
        assert ctx.headers["authorization"] == "Bearer SECRET"

    secrets = ("authorization", "Cookie", "x-api-key", "session-id", "my.token", "DB_PASSWORD")
    talks.options(headers={"tenant": "acme", **dict.fromkeys(secrets, "Bearer SECRET")}).enqueue()
    written = "\n".join(lines(log_format, app))
    assert "SECRET" not in written
    assert "acme" in written
    assert written.count("(redacted)") >= len(secrets)
