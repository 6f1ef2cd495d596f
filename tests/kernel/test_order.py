"""The two orders against the plainest models of them."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition
from hypothesis.stateful import rule as step

from leasemill.kernel.index.order import CHUNK_BITS, DEAD_ENTRIES_TOLERATED, SequenceOrder, TimeOrder
from leasemill.kernel.model import NEVER, Job, JobSpec


class Item:
    """Something in a TimeOrder: alive under one key at a time."""

    def __init__(self, at: int, number: int) -> None:
        self.at: int | None = at
        self.number = number


def is_alive(entry: tuple[int, int, Item]) -> bool:
    at, number, item = entry
    return item.at == at and item.number == number


class TimeOrderIsASortedList(RuleBasedStateMachine):
    """Push, remove from anywhere, move (as an extension does), against a list that is sorted when it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.order: TimeOrder[Item] = TimeOrder(is_alive)
        self.items: list[Item] = []
        self.pushed = 0

    def _key(self, item: Item) -> tuple[int, int]:
        assert item.at is not None
        return item.at, item.number

    @step(at=st.integers(0, 20), in_order=st.booleans(), count=st.integers(1, 5))
    def push(self, at: int, in_order: bool, count: int) -> None:
        for _ in range(count):
            self.pushed += 1
            item = Item(at, self.pushed)
            self.items.append(item)
            self.order.push(at, item.number, item, in_order=in_order)

    @precondition(lambda self: self.items)
    @step(data=st.data())
    def remove_one(self, data: st.DataObject) -> None:
        self._remove(data.draw(st.sampled_from(self.items)))

    @precondition(lambda self: self.items)
    @step()
    def remove_the_first(self) -> None:
        self._remove(min(self.items, key=self._key))

    @precondition(lambda self: self.items)
    @step()
    def remove_most_from_behind(self) -> None:
        for item in sorted(self.items, key=self._key)[1:]:
            self._remove(item)

    def _remove(self, item: Item) -> None:
        at, number = self._key(item)
        self.items.remove(item)
        item.at = None
        self.order.remove(at, number)

    @precondition(lambda self: self.items)
    @step(data=st.data(), later=st.integers(1, 5))
    def move(self, data: st.DataObject, later: int) -> None:
        item = data.draw(st.sampled_from(self.items))
        at, number = self._key(item)
        item.at = at + later
        self.order.push(at + later, number, item)
        self.order.remove(at, number)

    @step(limit=st.integers(0, 30), until=st.integers(0, 25))
    def first(self, limit: int, until: int) -> None:
        due = [item for item in sorted(self.items, key=self._key) if self._key(item)[0] <= until]
        assert self.order.first(limit, until) == due[:limit]

    @invariant()
    def says_the_same(self) -> None:
        ordered = sorted(self.items, key=self._key)
        assert len(self.order) == len(ordered)
        assert self.order.next_at() == (self._key(ordered[0])[0] if ordered else None)
        assert self.order.first(len(ordered) + 1, NEVER) == ordered


TestTimeOrder = TimeOrderIsASortedList.TestCase


def test_entries_that_left_do_not_pile_up() -> None:
    order: TimeOrder[Item] = TimeOrder(is_alive)
    keeper = Item(0, 0)
    order.push(0, 0, keeper)
    for number in range(1, 10_000):
        item = Item(number, number)
        order.push(number, number, item, in_order=number % 2 == 0)
        item.at = None
        order.remove(number, number)
    kept = len(order._queue) + len(order._heap)
    assert len(order) == 1
    assert kept <= 2 * DEAD_ENTRIES_TOLERATED + 2


def job(seq: int) -> Job:
    return Job(JobSpec(f"job-{seq}", "queue", "kind"), seq, 0, 0, 0)


SEQUENCES = st.integers(1, 4 << CHUNK_BITS)


@given(st.lists(st.tuples(st.booleans(), SEQUENCES), max_size=60), st.lists(SEQUENCES, max_size=10))
def test_a_sequence_order_is_a_sorted_dict(changes: list[tuple[bool, int]], positions: list[int]) -> None:
    order, model = SequenceOrder(), dict[int, Job]()
    for adds, seq in changes:
        if adds and seq not in model:
            model[seq] = job(seq)
            order.add(model[seq])
        else:
            model.pop(seq, None)
            order.discard(seq)
    for position in (0, *positions):
        assert list(order.after(position)) == [model[seq] for seq in sorted(model) if seq > position]
        assert list(order.before(position)) == [model[seq] for seq in sorted(model, reverse=True) if seq < position]
        assert order.get(position) is model.get(position)
        assert (position in order) == (position in model)


def test_reading_on_from_a_position_does_not_walk_what_lies_before() -> None:
    order = SequenceOrder()
    for seq in range(1, 20 << CHUNK_BITS):
        order.add(job(seq))
    jobs: Iterator[Job] = order.after(19 << CHUNK_BITS)
    assert next(jobs).seq == (19 << CHUNK_BITS) + 1
