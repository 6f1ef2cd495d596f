"""What every place for keys does, whatever keeps them."""

from __future__ import annotations

import pytest

from leasemill.errors import Refused
from leasemill.store import access_keys as stored
from leasemill.store.access_keys import AccessKey, AccessKeys, digest_of, is_authentic, new_key
from leasemill.wire.routes import Role

NOW = 1_800_000_000_000_000


def made(name: str = "ci", *, now: int = NOW, expires_at: int | None = None) -> AccessKey:
    return new_key(name=name, roles=[Role.WORKER], now=now, by="ada", queues=["mail", "b.*"], expires_at=expires_at)[0]


class KeySuite:
    """A subclass has a fixture `keys`: a place without a key."""

    def test_there_is_no_key_at_first(self, keys: AccessKeys) -> None:
        assert keys.all() == []

    def test_a_key_is_kept_as_it_was_added(self, keys: AccessKeys) -> None:
        key, text = new_key(
            name="ci", roles=[Role.PRODUCER, Role.READER], now=NOW, by="ada", queues=["mail", "b.*"], expires_at=NOW + 5
        )
        keys.add(key)
        assert keys.all() == [key]
        assert is_authentic(keys.all()[0], text)

    def test_keys_are_listed_by_age(self, keys: AccessKeys) -> None:
        late, early = made("late", now=NOW + 1), made("early")
        keys.add(late)
        keys.add(early)
        assert keys.all() == [early, late]

    def test_a_name_is_given_once_until_its_key_is_revoked(self, keys: AccessKeys) -> None:
        first = made()
        keys.add(first)
        with pytest.raises(Refused, match="there is a key named 'ci'"):
            keys.add(made())
        keys.revoke(first.id, at=NOW + 1, by="bob")
        keys.add(made())
        assert [key.revoked_by for key in keys.all() if key.name == "ci"].count(None) == 1

    def test_revoking_is_recorded_once(self, keys: AccessKeys) -> None:
        key = made()
        keys.add(key)
        for at, by in ((NOW + 1, "bob"), (NOW + 2, "eve")):
            after = keys.revoke(key.id, at=at, by=by)
            assert after is not None
            assert (after.revoked_at, after.revoked_by) == (NOW + 1, "bob")
        (found,) = keys.all()
        assert (found.revoked_at, found.revoked_by) == (NOW + 1, "bob")
        assert not found.is_live(NOW)

    def test_an_unknown_key_cannot_be_revoked(self, keys: AccessKeys) -> None:
        assert keys.revoke("0" * 12, at=NOW, by="bob") is None
        assert keys.all() == []

    def test_the_version_changes_with_keys_and_revocations(self, keys: AccessKeys) -> None:
        key, seen = made(), [keys.version()]
        keys.add(key)
        seen.append(keys.version())
        keys.add(made("other"))
        seen.append(keys.version())
        assert keys.version() == seen[-1]
        keys.revoke(key.id, at=NOW + 1, by="bob")
        seen.append(keys.version())
        assert len(set(seen)) == 4

    def test_the_last_use_never_moves_back(self, keys: AccessKeys) -> None:
        first, second = made("first"), made("second")
        keys.add(first)
        keys.add(second)
        keys.use({first.id: NOW + 9, "0" * 12: NOW})
        keys.use({first.id: NOW + 3, second.id: NOW + 4})
        assert {key.name: key.last_used_at for key in keys.all()} == {"first": NOW + 9, "second": NOW + 4}

    def test_revoked_keys_make_room_the_oldest_first_and_live_ones_do_not(
        self, keys: AccessKeys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (stored, *self.counting()):
            monkeypatch.setattr(module, "KEYS_KEPT", 3)
        added = [made(name) for name in ("one", "two", "three")]
        for key in added:
            keys.add(key)
        with pytest.raises(Refused, match="revoke those that nobody uses"):
            keys.add(made("four"))
        keys.revoke(added[1].id, at=NOW + 1, by="bob")
        keys.revoke(added[0].id, at=NOW + 2, by="bob")
        keys.add(made("four"))
        assert {key.name for key in keys.all()} == {"one", "three", "four"}

    def test_the_text_of_a_key_is_in_nothing_that_is_stored(self, keys: AccessKeys) -> None:
        key, text = new_key(name="ci", roles=[Role.WORKER], now=NOW, by="ada")
        keys.add(key)
        secret = text.rpartition("_")[2]
        assert secret not in repr(keys.all())
        assert secret not in repr(key)
        assert key.digest == digest_of(text)

    def counting(self) -> list[object]:
        """Other modules that have the greatest number of keys."""
        return []
