"""Unique keys by queue: the entries of one queue are never another's, and images of earlier versions are read."""

from __future__ import annotations

import random

from msgspec.structs import replace

from leasemill.kernel import events as e
from leasemill.kernel.image import KeyImage, image, jobs_in_order, restore
from leasemill.kernel.index.taken_keys import ANY_QUEUE, Key, TakenKeys
from leasemill.kernel.invariants import violations
from leasemill.kernel.machine import apply
from leasemill.kernel.model import JobSpec, Rules, UniqueKey
from leasemill.kernel.state import State
from leasemill.kernel.transitions.unique import holder_of
from leasemill.testing.rules import rule

KEPT = UniqueKey("key", keep_us=100)


def test_entries_are_those_of_a_dictionary_by_queue_and_key() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        keys, model = TakenKeys(), dict[tuple[str, str], Key]()
        for number in range(200):
            queue, key = rng.choice("abcd"), rng.choice("xy")
            if rng.random() < 0.6:
                taken = Key(f"job-{number}", number, queue)
                keys.put(key, taken)
                model[queue, key] = taken
            elif (queue, key) in model:
                keys.remove(queue, key)
                del model[queue, key]
            assert {(one.queue, name): one for name, one in keys.items()} == model, seed
            for name in "xy":
                assert keys.get(queue, name) == model.get((queue, name)), seed
                others = {one.queue for one in keys.elsewhere(queue, name)}
                assert others == {other for other, text in model if text == name and other != queue}, seed


def state_with(*events: e.AnyEvent) -> State:
    state = State()
    for event in events:
        apply(state, event)
    return state


ENQUEUED = e.JobEnqueued(JobSpec("job", "mail", "kind", rules=Rules(unique=KEPT)), 5)
CANCELLED = e.JobCancelled("job", 6, "ada", "why")
PURGED = e.JobPurged("job", 7, "ada", "why")


def read_as_of_an_earlier_version(state: State) -> State:
    """Its images do not name the queue of a key."""
    found = image(state)
    keys = tuple(KeyImage(kept.key, kept.job_id, kept.until) for kept in found.keys)
    assert len(keys) == 1
    restored = restore(replace(found, keys=keys), jobs_in_order(state))
    assert violations(restored) == []
    return restored


@rule("U3", "W16")
def test_a_kept_key_of_an_earlier_image_belongs_to_the_queue_of_its_job() -> None:
    state = read_as_of_an_earlier_version(state_with(ENQUEUED, CANCELLED))
    assert holder_of(state, "mail", "key", 104) is not None
    assert holder_of(state, "other", "key", 104) is None


@rule("U3", "W16")
def test_a_kept_key_of_an_earlier_image_whose_job_is_forgotten_is_held_in_every_queue_until_its_time_is_over() -> None:
    state = read_as_of_an_earlier_version(state_with(ENQUEUED, CANCELLED, PURGED))
    assert [taken.queue for _, taken in state.keys.items()] == [ANY_QUEUE]
    for queue in ("mail", "other"):
        holder = holder_of(state, queue, "key", 104)
        assert holder is not None
        assert (holder.job_id, holder.job) == ("job", None)
        assert holder_of(state, queue, "key", 105) is None
    apply(state, e.JobEnqueued(JobSpec("next", "other", "kind", rules=Rules(unique=KEPT)), 105))
    assert [taken.queue for _, taken in state.keys.items()] == ["other"]
    assert violations(state) == []
