"""`leasemill dashboard` as people run it."""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from leasemill.cli import main
from leasemill.cli.dashboard import served
from leasemill.kernel.model import JobSpec
from leasemill.server.address import bound_socket
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from tests.dashboard.client import Client
from tests.lab.processes import wait_until

PATIENCE_S = 60


def test_it_prints_a_link_that_signs_in_once_and_ends_with_a_signal(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'jobs'}"
    with open_store(url) as store:
        store.enqueue([JobSpec("one", "mail", "send")])
    command = [sys.executable, "-m", "leasemill", "dashboard", "--url", url, "--listen", "127.0.0.1:0", "--by", "ann"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"dashboard of {url}\n"
            link = process.stdout.readline().removeprefix("sign in (works once): ").strip()
            base = re.sub(r"/sign-in.*", "", link)
            with httpx.Client(timeout=PATIENCE_S) as browser, browser.stream("GET", f"{base}/sign-in") as page:
                assert page.status_code == 200
            with httpx.Client(timeout=PATIENCE_S, follow_redirects=True) as browser:
                assert "Overview" in browser.get(link).text
                assert "one" in browser.get(f"{base}/jobs").text
                with browser.stream("GET", f"{base}/events") as events:  # must not keep it from ending
                    assert next(events.iter_lines()) == "retry: 3000"
                    process.send_signal(signal.SIGINT)
                    assert process.wait(PATIENCE_S) == 0
            rest = process.stdout.read()
            assert rest.startswith("signed in; to sign in elsewhere: http://127.0.0.1:")
            assert "Traceback" not in rest
        finally:
            process.kill()


def test_the_demo_begins_when_somebody_looks_and_ends_with_a_signal() -> None:
    command = [sys.executable, "-m", "leasemill", "demo", "--dashboard", "--jobs", "200"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            link = process.stderr.readline().removeprefix("open the dashboard to start the demo: ").strip()
            base = re.sub(r"/sign-in.*", "", link)
            with httpx.Client(timeout=PATIENCE_S, follow_redirects=True) as browser:
                assert "Overview" in browser.get(link).text
                wait_until(lambda: "worker-3" in browser.get(f"{base}/workers").text, "three workers", PATIENCE_S)
            process.terminate()
            assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--listen", "7412"], "is not an address"),
        (["--listen", "127.0.0.1:http"], "is not an address"),
        (["--listen", "0.0.0.0:7412"], "can be reached from other machines"),
        (["--url", "{url}", "--listen", "127.0.0.1:0", "--redact", "ib(an"], "is not a regular expression"),
        (["--url", "{url}", "--listen", "127.0.0.1:0", "--redact", ""], "name a field"),
        (["--url", "memory:"], "a memory: store lives inside one process"),
        (["--url", "file:./nothing-here"], "there are no jobs in"),
    ],
)
def test_a_wrong_call_says_what_to_write(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasemill.cli.dashboard.step_aside", lambda: None)
    url = f"file:{tmp_path / 'jobs'}"
    with open_store(url) as store:
        store.enqueue([JobSpec("one", "mail", "send")])
    result = CliRunner().invoke(main, ["dashboard", *(one.format(url=url) for one in arguments)])
    assert result.exit_code in {1, 2}
    assert sentence in result.output


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'jobs'}"
    with open_store(url) as store:
        store.enqueue([JobSpec("one", "mail", "send")])
    with bound_socket("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        result = CliRunner().invoke(main, ["dashboard", "--url", url, "--listen", f"127.0.0.1:{port}"])
    assert result.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in result.output


def test_there_are_no_more_connections_than_descriptors(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: None)
    most: list[int] = []
    monkeypatch.setattr("leasemill.server.protocol.Connected", most.append)
    with bound_socket("127.0.0.1", 0) as listener:
        _, server = served(memory, listener, "127.0.0.1", by="ann", on_sign_in=lambda _link: None)
    server.dashboard.close()
    assert most == [56]


def test_fields_that_are_named_are_not_shown_beside_those_that_look_like_secrets(memory: Store) -> None:
    payload = b'{"iban": "DE02", "to": "ann", "password": "hunter2"}'
    memory.enqueue([JobSpec("one", "mail", "send", payload)])
    with bound_socket("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        link, server = served(memory, listener, "127.0.0.1", by="ann", on_sign_in=lambda _link: None, redact=("iban",))
    client = Client(server.dashboard, f"http://127.0.0.1:{port}")
    client.get(link)
    shown = client.get("/job?id=one").text
    assert "ann" in shown
    assert "DE02" not in shown
    assert "hunter2" not in shown
    server.dashboard.close()
