"""Keys in memory and in a folder, and what a key is."""

from __future__ import annotations

import hmac
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from leasemill.errors import Broken, Invalid, Refused, Unavailable
from leasemill.store.access_keys import (
    KEY,
    AccessKey,
    AccessKeys,
    MemoryKeys,
    NoKeys,
    digest_of,
    id_of,
    is_authentic,
    new_key,
)
from leasemill.store.file.access_keys import FolderKeys
from leasemill.store.file.store import FileStore
from leasemill.wire.routes import Role
from tests.store.key_suite import NOW, KeySuite, made


class TestMemory(KeySuite):
    @pytest.fixture
    def keys(self) -> AccessKeys:
        return MemoryKeys()


class TestFolder(KeySuite):
    @pytest.fixture
    def keys(self, tmp_path: Path) -> AccessKeys:
        return FolderKeys(tmp_path)


# What a key is -----------------------------------------------------------------------------------------------------


def new(**given: Any) -> tuple[AccessKey, str]:
    complete: dict[str, Any] = {"name": "ci", "roles": [Role.WORKER], "now": NOW, "by": "ada"}
    return new_key(**complete | given)


def test_a_key_has_a_public_id_and_256_random_bits() -> None:
    made_keys = [new() for _ in range(100)]
    assert len({text for _, text in made_keys}) == 100
    for key, text in made_keys:
        assert KEY.fullmatch(text)
        assert id_of(text) == key.id
        assert len(bytes.fromhex(text.rpartition("_")[2])) * 8 == 256


@pytest.mark.parametrize(
    "text", ["", "lm_", "lm_0123456789ab_", "lm_0123456789ab_" + "g" * 64, "é" * 80, "lm_\n_" + "0" * 64]
)
def test_what_is_not_a_key_has_no_id(text: str) -> None:
    assert id_of(text) is None


def test_only_the_very_text_is_authentic() -> None:
    key, text = new()
    other, other_text = new()
    assert is_authentic(key, text)
    assert not is_authentic(key, other_text)
    assert not is_authentic(key, text[:-1] + ("0" if text[-1] != "0" else "1"))
    assert not is_authentic(None, text)
    assert not is_authentic(other, text)


def test_digests_are_compared_in_constant_time_also_for_unknown_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    key, text = new()
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return real(left, right)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert is_authentic(key, text)
    assert not is_authentic(None, text)
    assert compared == [(key.digest, digest_of(text)), (bytes(32), digest_of(text))]


def test_nobody_has_the_key_whose_digest_stands_for_an_unknown_one() -> None:
    unknown, _ = new()
    assert not is_authentic(None, "lm_" + "0" * 12 + "_" + "0" * 64)
    assert unknown.digest != bytes(32)


@pytest.mark.parametrize(("given", "message"), [
    ({"name": "two words"}, "key name 'two words' is not a name"),
    ({"roles": []}, "has no role: give it at least one of produce, work, read, operate"),
    ({"queues": []}, "name 1 to 100"),
    ({"queues": ["a b"]}, "not a pattern of queues"),
    ({"queues": ["[a-z]"]}, "not a pattern of queues"),
    ({"expires_at": NOW}, "would have expired already"),
    ({"by": ""}, "created by"),
])  # fmt: skip
def test_a_key_that_makes_no_sense_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        new(**given)


def test_a_key_lives_until_it_expires() -> None:
    key, _ = new(expires_at=NOW + 10)
    assert key.is_live(NOW + 9)
    assert not key.is_live(NOW + 10)


def test_a_store_behind_a_server_has_no_keys_of_its_own() -> None:
    keys = NoKeys()
    for call in (
        keys.version,
        keys.all,
        lambda: keys.add(made()),
        lambda: keys.revoke("a", at=1, by="b"),
        lambda: keys.use({}),
    ):
        with pytest.raises(Refused, match="where the server runs"):
            call()


# A folder ----------------------------------------------------------------------------------------------------------


def test_the_file_is_the_owner_s_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        FolderKeys(tmp_path).add(made())
    finally:
        os.umask(before)
    assert [(path.name, path.stat().st_mode & 0o777) for path in sorted(tmp_path.iterdir())] == [
        ("keys", 0o600),
        ("keys.lock", 0o600),
    ]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    keys = FolderKeys(tmp_path)
    keys.add(made())
    (tmp_path / "keys").chmod(mode)
    with pytest.raises(Refused, match="chmod 600"):
        keys.all()


@pytest.mark.parametrize(("content", "message"), [
    (b"", "is damaged"),
    (b'{"format":1,"keys":[{}]}', "is damaged"),
    (b'{"format":2,"keys":[]}', "use a later version"),
    (b'{"format":1,"keys":[' + b"[" * 100_000, "is damaged"),
])  # fmt: skip
def test_a_damaged_file_is_never_read_as_no_keys(tmp_path: Path, content: bytes, message: str) -> None:
    keys = FolderKeys(tmp_path)
    keys.add(made())
    (tmp_path / "keys").write_bytes(content)
    with pytest.raises(Broken, match=message):
        keys.all()
    with pytest.raises(Broken, match=message):
        keys.add(made("other"))
    assert (tmp_path / "keys").read_bytes() == content


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    FolderKeys(elsewhere).add(made())
    (tmp_path / "keys").symlink_to(elsewhere / "keys")
    with pytest.raises(Unavailable):
        FolderKeys(tmp_path).all()


def test_a_disk_that_does_not_read_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir(mode=0o700)
    with pytest.raises(Unavailable, match="keys: Is a directory"):
        FolderKeys(tmp_path).all()


def test_what_a_killed_writer_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "keys.new").write_bytes(b"hal")
    keys = FolderKeys(tmp_path)
    keys.add(made())
    assert [key.name for key in keys.all()] == ["ci"]
    assert not (tmp_path / "keys.new").exists()


def test_two_stores_of_a_folder_have_the_same_keys_and_a_restart_keeps_them(tmp_path: Path) -> None:
    key = made()
    with FileStore(tmp_path / "jobs") as one, FileStore(tmp_path / "jobs") as two:
        one.keys.add(key)
        assert two.keys.all() == [key]
        two.keys.revoke(key.id, at=NOW + 1, by="bob")
    with FileStore(tmp_path / "jobs") as again:
        assert [one.revoked_by for one in again.keys.all()] == ["bob"]


PROGRAM = """
import sys
from pathlib import Path
from leasemill.store.file.access_keys import FolderKeys
from tests.store.key_suite import NOW, made
keys = FolderKeys(Path(sys.argv[1]))
for number in range(20):
    key = made(f"{sys.argv[2]}-{number}")
    keys.add(key)
    keys.use({key.id: NOW + number})
    if number % 2:
        keys.revoke(key.id, at=NOW + 1, by=sys.argv[2])
    names = [one.name for one in keys.all()]
    assert key.name in names, names
"""


def test_processes_that_create_and_revoke_at_once_lose_nothing(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    writers = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path), f"w{number}"], cwd=root) for number in range(4)
    ]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0, 0]
    found = FolderKeys(tmp_path).all()
    assert len(found) == 80
    assert sum(key.revoked_at is not None for key in found) == 40
    assert all(key.last_used_at is not None for key in found)


def test_one_name_is_given_once_however_many_ask_at_once(tmp_path: Path) -> None:
    def add(_: int) -> bool:
        try:
            FolderKeys(tmp_path).add(made("same"))
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(8) as executor:
        assert sum(executor.map(add, range(16))) == 1
