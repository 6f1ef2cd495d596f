"""A death is passed on until one process confirms it."""

from leasemill.worker.supervisor.unrecorded import FIRST_WAIT_S, KEPT_S, ChildDeath, UnrecordedDeaths


def death(instance: str = "a", died_at: float = 100.0) -> ChildDeath:
    return ChildDeath("mill.1", instance, "exit status 137", died_at)


def instances(deaths: list[ChildDeath]) -> list[str]:
    return [one.instance for one in deaths]


def test_a_death_is_due_at_once_and_again_until_it_is_recorded() -> None:
    unrecorded = UnrecordedDeaths()
    assert unrecorded.due_at() is None
    unrecorded.add(death())
    assert instances(unrecorded.due(100.0)) == ["a"]
    assert instances(unrecorded.due(100.1)) == []
    again_at = unrecorded.due_at()
    assert again_at == 100.0 + FIRST_WAIT_S
    assert instances(unrecorded.due(again_at)) == ["a"]
    unrecorded.recorded("a")
    assert unrecorded.due(200.0) == []
    unrecorded.recorded("a")


def test_a_process_that_starts_gets_every_death_although_another_was_asked() -> None:
    unrecorded = UnrecordedDeaths()
    unrecorded.add(death("a"))
    unrecorded.add(death("b"))
    unrecorded.due(100.0)
    assert instances(unrecorded.all_of(100.1)) == ["a", "b"]


def test_a_death_that_nobody_records_is_forgotten_in_the_end() -> None:
    unrecorded = UnrecordedDeaths()
    unrecorded.add(death())
    assert unrecorded.due(101.0 + KEPT_S) == []
    assert unrecorded.due_at() is None
