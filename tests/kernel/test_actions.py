"""The audit trail as it is stored: records of earlier versions are read, and earlier versions read ours."""

from __future__ import annotations

import msgspec

from leasemill.kernel.image import Image, PlainAction, image, restore
from leasemill.kernel.model import Action, Verb
from leasemill.kernel.state import State
from leasemill.testing.rules import rule


def test_an_action_of_an_earlier_version_was_done_to_one_target() -> None:
    earlier = msgspec.msgpack.encode(PlainAction(7, Verb.CANCEL, "ann", "job", "because"))
    action = msgspec.msgpack.decode(earlier, type=Action)
    assert (action.count, action.began_at, action.targets) == (1, 7, ("job",))


def test_an_earlier_version_reads_the_first_of_many_targets() -> None:
    action = Action(9, Verb.CANCEL, "ann", "job", "because", 3, 7, ("other", "third"))
    earlier = msgspec.msgpack.decode(msgspec.msgpack.encode(action), type=PlainAction)
    assert earlier == PlainAction(9, Verb.CANCEL, "ann", "job", "because")


@rule("W13", "O8")
def test_an_action_on_many_jobs_is_kept_by_a_snapshot_and_one_on_one_job_is_written_as_before() -> None:
    state = State()
    one = Action(9, Verb.PAUSE, "ann", "mail", "because")
    many = Action(9, Verb.CANCEL, "ann", "job", "because", 3, 7, ("other", "third"))
    state.actions.extend([one, many])
    written = msgspec.msgpack.encode(image(state))
    read = msgspec.msgpack.decode(written, type=Image)
    assert list(restore(read, []).actions) == [one, many]
    assert list(restore(image(state), []).actions) == [one, many]
    assert msgspec.msgpack.encode(PlainAction(9, Verb.PAUSE, "ann", "mail", "because")) in written
