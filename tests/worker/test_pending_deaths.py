"""A death is passed on until one process confirms it."""

from leasemill.worker.process_ends import FIRST_WAIT_S, KEPT_S, ChildDeath, PendingDeaths


def death(instance: str = "a", died_at: float = 100.0) -> ChildDeath:
    return ChildDeath("mill.1", instance, "exit status 137", died_at)


def instances(deaths: list[ChildDeath]) -> list[str]:
    return [one.instance for one in deaths]


def test_a_death_is_due_at_once_and_again_until_it_is_recorded() -> None:
    pending = PendingDeaths()
    assert pending.due_at() is None
    pending.add(death())
    assert instances(pending.due(100.0)) == ["a"]
    assert instances(pending.due(100.1)) == []
    again_at = pending.due_at()
    assert again_at == 100.0 + FIRST_WAIT_S
    assert instances(pending.due(again_at)) == ["a"]
    pending.recorded("a")
    assert pending.due(200.0) == []
    pending.recorded("a")


def test_a_process_that_starts_gets_every_death_although_another_was_asked() -> None:
    pending = PendingDeaths()
    pending.add(death("a"))
    pending.add(death("b"))
    pending.due(100.0)
    assert instances(pending.all_of(100.1)) == ["a", "b"]


def test_a_death_that_nobody_records_is_forgotten_in_the_end() -> None:
    pending = PendingDeaths()
    pending.add(death())
    assert pending.due(101.0 + KEPT_S) == []
    assert pending.due_at() is None
