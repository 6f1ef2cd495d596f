"""`leasemill keys`: created once, listed without secrets, revoked by id or name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from leasemill.cli import main
from leasemill.store.access_keys import is_authentic
from leasemill.store.factory import open_store


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'jobs'}"


def leasemill(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def create(url: str, *arguments: str) -> str:
    done = leasemill("keys", "create", *arguments, "--url", url)
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


def test_a_key_is_printed_alone_so_that_a_shell_can_keep_it(url: str) -> None:
    done = leasemill("keys", "create", "ci", "--role", "work", "--queues", "mail", "--url", url)
    with open_store(url) as store:
        (key,) = store.keys.all()
    assert is_authentic(key, done.stdout.removesuffix("\n"))
    assert done.stderr == (
        f"key {key.id} created: ci may work on mail, never expires. It is not shown again: store it now.\n"
    )


def test_a_key_is_created_in_a_store_that_is_not_there_yet_and_as_json(url: str) -> None:
    arguments = ["--role", "read", "--role", "produce", "--queues", "a.*", "--queues", "b", "--expires", "90d"]
    document = json.loads(create(url, "web", *arguments, "--by", "ada", "--json"))
    assert document["roles"] == ["produce", "read"]
    assert document["queues"] == ["a.*", "b"]
    assert document["created_by"] == "ada"
    with open_store(url) as store:
        (key,) = store.keys.all()
    assert key.expires_at == key.created_at + 90 * 86_400 * 1_000_000
    assert is_authentic(key, document["key"])


def test_a_list_shows_what_a_key_is_for_and_never_the_key(url: str) -> None:
    text = create(url, "ci", "--role", "work")
    with open_store(url) as store:
        (key,) = store.keys.all()
        store.keys.use({key.id: key.created_at})
    for arguments in ([], ["--all"], ["--json"], ["--all", "--json"]):
        shown = leasemill("keys", "list", *arguments, "--url", url)
        assert shown.exit_code == 0, shown.output
        assert key.id in shown.output
        assert text not in shown.output
        assert text.rpartition("_")[2] not in shown.output
        assert key.digest.hex() not in shown.output
    assert json.loads(leasemill("keys", "list", "--json", "--url", url).stdout)[0]["last_used_at"] is not None


@pytest.mark.parametrize("by_name", [False, True])
def test_a_key_is_revoked_by_id_or_name_and_then_listed_with_all_alone(url: str, by_name: bool) -> None:
    key_id = create(url, "ci", "--role", "work").split("_")[1]
    done = leasemill("keys", "revoke", "ci" if by_name else key_id, "--by", "ada", "--url", url)
    assert done.stdout == f"key {key_id} (ci) revoked\n"
    assert json.loads(leasemill("keys", "list", "--json", "--url", url).stdout) == []
    (document,) = json.loads(leasemill("keys", "list", "--all", "--json", "--url", url).stdout)
    assert (document["is_live"], document["revoked_by"]) == (False, "ada")
    again = leasemill("keys", "revoke", key_id, "--by", "eve", "--url", url)
    assert again.stdout == f"key {key_id} (ci) revoked (it was already, by ada)\n"


def test_an_unknown_key_is_not_revoked(url: str) -> None:
    create(url, "deploy", "--role", "work")
    done = leasemill("keys", "revoke", "deplay", "--url", url)
    assert done.exit_code == 1
    assert "no key 'deplay'; did you mean 'deploy'?" in done.stderr


def test_whoever_names_the_key_itself_is_told_to_revoke_it_and_it_is_not_shown_again(url: str) -> None:
    text = create(url, "ci", "--role", "work")
    done = leasemill("keys", "revoke", text, "--url", url)
    assert done.exit_code == 1
    assert "in the history of your shell" in done.stderr
    assert text not in done.output


@pytest.mark.parametrize(("arguments", "exit_code", "message"), [
    (["ci"], 2, "Missing option '--role'"),
    (["ci", "--role", "god"], 2, "'god' is not one of"),
    (["ci", "--role", "work", "--expires", "soon"], 2, "write for example 90d"),
    (["ci", "--role", "work", "--expires", "0d"], 2, "write for example 90d"),
    (["ci", "--role", "work", "--queues", "a b"], 2, "not a pattern of queues"),
    (["a b", "--role", "work"], 2, "is not a name"),
    (["taken", "--role", "work"], 1, "there is a key named 'taken'"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused(url: str, arguments: list[str], exit_code: int, message: str) -> None:
    create(url, "taken", "--role", "work")
    done = leasemill("keys", "create", *arguments, "--url", url)
    assert done.exit_code == exit_code, done.output
    assert message in done.output


def test_keys_of_a_memory_store_would_be_gone_at_once() -> None:
    done = leasemill("keys", "create", "ci", "--role", "work", "--url", "memory:")
    assert done.exit_code == 1
    assert "lives inside one process" in done.output


@pytest.mark.parametrize("arguments", [["create", "ci", "--role", "work"], ["list"], ["revoke", "ci"]])
def test_keys_are_not_managed_through_a_server(arguments: list[str]) -> None:
    done = leasemill("keys", *arguments, "--url", "http://127.0.0.1:9")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert "run leasemill keys where the server runs, with the URL of its store" in done.stderr
