"""`leasemill serve` as a process: who gets in, who does not, and that no key is in anything it shows."""

from __future__ import annotations

import ssl
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from leasemill.errors import Refused, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, JobState
from leasemill.store.access_keys import new_key
from leasemill.store.factory import open_store
from leasemill.store.http import retry_policy
from leasemill.store.http.store import HttpStore
from leasemill.wire.routes import ROUTES, Role
from tests.lab.processes import wait_until
from tests.lab.served import Served, add_key, exchange, post, read_reply, serving, status_of

TIME = "/v1/get_time"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"file:{tmp_path_factory.mktemp('served') / 'jobs'}"


@pytest.fixture(scope="module")
def key(url: str) -> str:
    return add_key(url)[1]


@pytest.fixture(scope="module")
def keyed(url: str, key: str) -> Iterator[Served]:
    with serving(url, "--require-keys") as served:
        yield served


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(f"file:{tmp_path_factory.mktemp('local') / 'jobs'}") as served:
        yield served


def store_of(served: Served, key: str) -> HttpStore:
    return HttpStore(served.url.replace("//", f"//{key}@"))


# Starting ----------------------------------------------------------------------------------------------------------


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "leasemill", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.255.255.1"])
def test_a_server_that_others_can_reach_does_not_start_without_a_key(tmp_path: Path, host: str) -> None:
    done = serve("--url", f"file:{tmp_path / 'jobs'}", "--listen", f"{host}:0")
    assert done.returncode == 1
    assert "other machines can reach" in done.stderr
    assert "leasemill keys create NAME --role work --url file:" in done.stderr


def test_nor_does_one_that_has_only_keys_that_are_over(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'jobs'}"
    add_key(url, expires_at=2)
    revoked, _ = add_key(url, name="revoked")
    with open_store(url) as store:
        store.keys.revoke(revoked.id, at=2, by="ada")
    done = serve("--url", url, "--listen", "127.0.0.1:0", "--require-keys")
    assert done.returncode == 1
    assert "no usable key" in done.stderr


@pytest.mark.parametrize(("arguments", "message"), [
    (["--key", "FILE"], "give both"),
    (["--cert", "FILE"], "cannot be used for TLS"),
    (["--cert", "missing.pem"], "missing.pem cannot be used for TLS: No such file"),
])  # fmt: skip
def test_a_wrong_certificate_is_reported_before_anybody_listens(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    file = tmp_path / "file.pem"
    file.write_text("nonsense")
    done = serve("--url", f"file:{tmp_path / 'jobs'}", *[str(file) if one == "FILE" else one for one in arguments])
    assert done.returncode == 2
    assert message in done.stderr


def test_a_key_for_clients_in_place_of_a_private_key_is_not_shown_again(tmp_path: Path) -> None:
    text = new_key(name="ci", roles=Role, now=1, by="ada")[1]
    done = serve("--url", f"file:{tmp_path / 'jobs'}", "--key", text)
    assert done.returncode == 2
    assert "revoke that one" in done.stderr
    assert text not in done.stderr + done.stdout


# Keys --------------------------------------------------------------------------------------------------------------


def test_without_a_key_there_is_no_route_that_answers(keyed: Served) -> None:
    for path in [*(route.path for route in ROUTES), "/metrics", "/openapi.json", "/", "/nowhere"]:
        reply = exchange(keyed, post(path))
        assert status_of(reply) == 401, (path, reply)
        assert b"www-authenticate: " in reply


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_probe_needs_no_key_and_learns_nothing_of_the_store(keyed: Served, path: str) -> None:
    reply = exchange(keyed, f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    assert status_of(reply) == 200
    assert reply.endswith(b'{"status":"ok"}')


@pytest.mark.parametrize("sent", [
    "authorization: Bearer", "authorization: Bearer ", "authorization: lm_", "authorization: Basic Og==",
    "authorization: Bearer lm_0123456789ab_" + "0" * 64, "authorization: Bearer \xe9", "authorization: Digest x",
    "x-api-key: KEY", "authorization: Basic OktFWQ==", "authorization: KEY",
])  # fmt: skip
def test_nothing_but_the_key_itself_is_taken(keyed: Served, key: str, sent: str) -> None:
    assert status_of(exchange(keyed, post(TIME, more=sent.replace("KEY", key)))) == 401


def test_a_key_is_taken_as_a_bearer_token_however_that_is_spelt(keyed: Served, key: str) -> None:
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert status_of(exchange(keyed, post(TIME, more=f"Authorization: {scheme} {key}"))) == 200


def test_a_key_created_later_is_taken_and_a_revoked_one_refused_within_a_moment(keyed: Served, url: str) -> None:
    late, text = add_key(url, name="late")
    wait_until(lambda: status_of(exchange(keyed, post(TIME, key=text))) == 200, "the new key", 30)
    with open_store(url) as store:
        store.keys.revoke(late.id, at=2, by="ada")
    wait_until(lambda: status_of(exchange(keyed, post(TIME, key=text))) == 401, "the revocation", 30)


def test_an_expired_key_is_refused(keyed: Served, url: str) -> None:
    soon, text = new_key(name="soon", roles=Role, now=1, by="ada", expires_at=time.time_ns() // 1_000 + 3_000_000)
    with open_store(url) as store:
        store.keys.add(soon)
    wait_until(lambda: status_of(exchange(keyed, post(TIME, key=text))) == 200, "the new key", 30)
    wait_until(lambda: status_of(exchange(keyed, post(TIME, key=text))) == 401, "its end", 30)


def test_a_call_that_waits_ends_with_its_key_and_claims_nothing_more(keyed: Served, url: str) -> None:
    waiting, text = add_key(url, Role.WORKER, name="waiting")
    wait_until(lambda: status_of(exchange(keyed, post("/v1/next_tick", key=text))) == 200, "the new key", 30)
    body = b'{"worker":"w","queues":["later"],"limit":1,"wait_s":60}'
    replies: list[bytes] = []
    with keyed.connect() as connection:
        connection.sendall(post("/v1/claim", body, text))
        reader = threading.Thread(target=lambda: replies.append(read_reply(connection)))
        reader.start()
        with open_store(url) as store:
            store.keys.revoke(waiting.id, at=2, by="ada")
            reader.join(30)
            assert [status_of(reply) for reply in replies] == [401]
            store.enqueue([JobSpec("later", "later", "k")])
            assert [lease.job.id for lease in store.claim("other", ["later"], 1)] == ["later"]


def test_the_last_use_is_recorded(keyed: Served, url: str, key: str) -> None:
    assert status_of(exchange(keyed, post(TIME, key=key))) == 200
    with open_store(url) as store:
        wait_until(lambda: store.keys.all()[0].last_used_at is not None, "the last use", 30)


def test_two_keys_work_beside_each_other_and_neither_ends_the_other_s_run(keyed: Served, url: str) -> None:
    texts = [add_key(url, Role.PRODUCER, Role.WORKER, name=name)[1] for name in ("alice", "bob")]
    wait_until(lambda: status_of(exchange(keyed, post(TIME, key=texts[1]))) == 200, "the new keys", 30)
    with store_of(keyed, texts[0]) as alice, store_of(keyed, texts[1]) as bob:
        alice.enqueue([JobSpec("shared", "both", "k")])
        (lease,) = alice.claim("w", ["both"], 1)
        (outcome,) = bob.ack([c.AckReport("shared", lease.token)])
        assert isinstance(outcome, c.Lost)
        (done,) = alice.ack([c.AckReport("shared", lease.token)])
        assert isinstance(done, c.Acked)
        job = bob.job("shared")
        assert job is not None
        assert job.state is JobState.SUCCEEDED
        with pytest.raises(Refused, match="may produce and work; pause needs a key that may operate"):
            bob.pause("both", by="mallory", reason="because")


def test_what_an_operator_does_is_recorded_with_the_key_s_name(keyed: Served, url: str, key: str) -> None:
    with store_of(keyed, key) as store:
        store.pause("mail", by="mallory", reason="because")
        store.resume("mail", by="mallory", reason="because")
        with pytest.raises(Refused, match="run leasemill keys where the server runs"):
            store.keys.all()
    with open_store(url) as behind:
        assert {action.by for action in behind.actions(limit=2)} == {"ci"}


def test_pages_take_the_key_as_a_password_and_need_one_that_reads_everything(keyed: Served, url: str, key: str) -> None:
    _, narrow = add_key(url, Role.READER, name="narrow", queues=["mail"])
    _, worker = add_key(url, Role.WORKER, name="worker")

    def get(text: str, path: str = "/metrics") -> int:
        basic = b64encode(f"me:{text}".encode()).decode()
        raw = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic {basic}\r\n\r\n"
        return status_of(exchange(keyed, raw.encode()))

    assert get(key) == 200
    wait_until(lambda: get(worker) == 403, "the worker's key", 30)
    assert get(narrow) == 403
    assert get(key[:-1]) == 401
    assert [get(one, "/openapi.json") for one in (key, narrow, worker, key[:-1])] == [200, 200, 200, 401]


def test_no_key_is_in_anything_that_the_server_shows(url: str) -> None:
    _, text = add_key(url, name="hidden")
    secret = text.rpartition("_")[2]
    with serving(url, "--require-keys", "--log-level", "debug") as served:
        wait_until(lambda: status_of(exchange(served, post(TIME, key=text))) == 200, "the key", 30)
        wrong = text[:-1] + ("0" if text[-1] != "0" else "1")
        sent = [
            post(TIME, key=text), post(TIME, key=wrong), post("/v1/nothing", key=text), post(TIME, b"{", key=text),
            post(TIME, b"[" * 100_000, key=text), post("/v1/get_job", b'{"job_id":""}', key=text),
            post("/v1/claim", b'{"worker":"w","queues":[],"limit":1}', key=text), post("/metrics", key=text),
            post(TIME, key=text).replace(b"HTTP/1.1", b"HTTP/9.9"),
            post(TIME, key=text).replace(b"\r\nhost", b"\r\n host"),
            f"GET /metrics HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {text}\r\n\r\n".encode(),
        ]  # fmt: skip
        answers = [exchange(served, raw) for raw in sent]
        process = psutil.Process(served.process.pid)
        shown = " ".join([*process.cmdline(), process.name(), *process.environ().values()])
        served.stop()
        assert secret not in served.text
        assert wrong[-63:] not in served.text
    assert secret not in shown
    assert all(secret.encode() not in answer for answer in answers)
    for path in Path(url.removeprefix("file:")).rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


# Loopback ----------------------------------------------------------------------------------------------------------


def test_programs_of_this_machine_need_no_key_on_loopback(local: Served) -> None:
    with HttpStore(local.url) as store:
        store.enqueue([JobSpec("one", "mail", "k")])
        assert [job.spec.id for job in store.jobs().jobs] == ["one"]
    assert (
        status_of(exchange(local, post(TIME, key="lm_0123456789ab_" + "0" * 64))) == 401
    )  # a wrong one is still wrong


@pytest.mark.parametrize(("more", "host", "status"), [
    ("origin: https://evil.example", "localhost", 403),
    ("origin: null", "localhost", 403),
    ("sec-fetch-site: cross-site", "localhost", 403),
    ("", "evil.example", 421),
    ("", "localhost.evil.example", 421),
    ("x-forwarded-for: 10.0.0.1", "localhost", 403),
    ("forwarded: for=10.0.0.1", "localhost", 403),
    ("", "localhost", 200),
    ("", "127.0.0.1:7411", 200),
    ("origin: http://localhost", "localhost", 200),
])  # fmt: skip
def test_a_web_page_or_a_proxy_does_not_reach_a_server_without_keys(
    local: Served, more: str, host: str, status: int
) -> None:
    assert status_of(exchange(local, post(TIME, host=host, more=more))) == status


def test_what_a_form_or_a_script_can_send_without_asking_first_is_no_command(local: Served) -> None:
    plain = post(TIME).replace(b"application/json", b"text/plain")
    assert status_of(exchange(local, plain)) == 415
    preflight = b"OPTIONS /v1/get_time HTTP/1.1\r\nhost: localhost\r\norigin: https://evil.example\r\n\r\n"
    reply = exchange(local, preflight)
    assert status_of(reply) == 403
    assert b"access-control" not in reply.lower()


# Limits and TLS ----------------------------------------------------------------------------------------------------


def test_a_key_that_asks_too_often_is_told_when_to_come_back(url: str, key: str) -> None:
    with serving(url, "--require-keys", "--rate", "1") as served:
        replies = [exchange(served, post(TIME, key=key)) for _ in range(8)]
        assert 429 in {status_of(reply) for reply in replies}
        assert status_of(replies[0]) == 200
        refused = next(reply for reply in replies if status_of(reply) == 429)
        assert b"retry-after: 1\r\n" in refused
        assert status_of(exchange(served, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")) in {200, 421}


def test_connections_are_bounded_and_idle_ones_make_room(tmp_path: Path) -> None:
    wait = post("/v1/watch_queues", b'{"queues":["q"],"wait_s":60}')
    with serving(f"file:{tmp_path / 'jobs'}", "--connections", "10") as served, ExitStack() as opened:
        held = [opened.enter_context(served.connect()) for _ in range(10)]
        for connection in held:
            connection.sendall(post(TIME))
            assert status_of(read_reply(connection)) == 200
        newcomer = opened.enter_context(served.connect())
        newcomer.sendall(post(TIME))
        assert status_of(read_reply(newcomer)) == 200
        assert held[0].recv(1) == b""  # the one that was idle longest
        for connection in [newcomer, *held[1:]]:
            connection.sendall(wait)
        wait_until(lambda: status_of(exchange(served, post(TIME))) == 503, "all of them to wait", 30)
        held[1].close()
        wait_until(lambda: status_of(exchange(served, post(TIME))) == 200, "room for one", 30)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, private = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    done = subprocess.run([*command, *names, "-keyout", private, "-out", cert], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return cert, private


def test_a_server_with_a_certificate_speaks_https_and_nothing_else(
    url: str, key: str, certificate: tuple[Path, Path]
) -> None:
    cert, private = certificate
    context = ssl.create_default_context(cafile=str(cert))
    with serving(url, "--require-keys", "--cert", str(cert), "--key", str(private)) as served:
        assert status_of(exchange(served, post(TIME, key=key), context)) == 200
        assert status_of(exchange(served, post(TIME, key=key))) == 0
        old = ssl.create_default_context(cafile=str(cert))
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            exchange(served, post(TIME, key=key), old)
        assert "Traceback" not in served.text


def test_a_store_speaks_https_with_a_server_it_can_verify_and_with_no_other(
    url: str, key: str, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, private = certificate
    with serving(url, "--require-keys", "--cert", str(cert), "--key", str(private)) as served:
        address = served.url.replace("http://127.0.0.1", f"https://{key}@localhost")
        monkeypatch.setattr(retry_policy, "PATIENCE_S", 0.0)
        with open_store(address) as store, pytest.raises(Unavailable, match="certificate"):
            store.time()
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        with open_store(address) as store:
            assert [store.time() > 0 for _ in range(3)] == [True] * 3
            assert not store.watch(["mail"]).wait(0.01)


def test_the_files_of_a_server_are_the_owner_s_alone(url: str, key: str) -> None:
    folder = Path(url.removeprefix("file:"))
    assert (folder / "keys").stat().st_mode & 0o077 == 0
