"""`leasemill dashboard` as people run it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from leasemill.cli import main
from leasemill.kernel.model import JobSpec
from leasemill.server.listening import bound_socket
from leasemill.store.opening import open_store

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


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--listen", "7412"], "is not an address"),
        (["--listen", "127.0.0.1:http"], "is not an address"),
        (["--listen", "0.0.0.0:7412"], "can be reached from other machines"),
        (["--url", "memory:"], "a memory: store lives inside one process"),
        (["--url", "file:./nothing-here"], "there are no jobs in"),
    ],
)
def test_a_wrong_call_says_what_to_write(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(main, ["dashboard", *arguments])
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
