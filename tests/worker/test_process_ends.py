"""When a process that died is started again, and when that is given up."""

import signal

import pytest

from leasemill.worker.process_ends import RestartPace, Restarts, described, exit_status


def test_after_a_healthy_run_the_next_process_starts_at_once() -> None:
    assert Restarts(RestartPace(healthy_s=5)).delay_s(5.0) == 0


def test_after_quick_deaths_the_delay_doubles_up_to_its_longest() -> None:
    restarts = Restarts(RestartPace())
    assert [restarts.delay_s(up_s) for up_s in (None, 0.1, 4.9, None, None, None, None)] == [1, 2, 4, 8, 16, 30, 30]
    assert restarts.delay_s(60.0) == 0
    assert restarts.delay_s(None) == 1


def test_a_process_that_dies_for_days_beside_healthy_ones_is_started_again_and_again() -> None:
    restarts = Restarts(RestartPace())
    assert [restarts.delay_s(None) for _ in range(10_000)][-1] == 30


def test_a_place_is_given_up_after_quick_deaths_in_a_row_unless_its_process_has_recovered() -> None:
    restarts = Restarts(RestartPace(most_deaths=3))
    for _ in range(2):
        restarts.delay_s(None)
    assert not restarts.are_given_up(None)
    restarts.delay_s(0.5)
    assert restarts.are_given_up(None)
    assert restarts.are_given_up(0.5)
    assert not restarts.are_given_up(6.0)


@pytest.mark.parametrize(
    ("return_code", "status", "text"),
    [
        (0, 0, "exit status 0"),
        (70, 70, "exit status 70"),
        (-signal.SIGKILL, 137, "exit status 137 (SIGKILL)"),
        (-40, 168, "exit status 168 (signal 40)"),
    ],
)
def test_an_end_is_described_as_shells_do(return_code: int, status: int, text: str) -> None:
    assert exit_status(return_code) == status
    assert described(return_code) == text
