"""What is left of an error when the values in it are taken out, and how many groups that makes."""

from __future__ import annotations

import pytest

from leasemill.kernel.model import AbortReason, Execution, ExecutionStatus, Job, JobSpec, JobState, Terms
from leasemill.operator.fingerprint import MOST_GROUPS, OTHERS, Groups, fingerprint, normalised


def failed(job_id: str, error: str, kind: str = "kind", at: int = 1) -> Job:
    execution = Execution("job", 1, 1, "t", "w", None, 0, 1, Terms(), ExecutionStatus.ABORTED, error=error)
    execution.reason, execution.is_final = AbortReason.FAILED, True
    return Job(JobSpec(job_id, "q", kind), 1, 0, 0, at, JobState.FAILED, 1, executions=(execution,))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("ValueError: no", "ValueError: no"),
        ("KeyError: 'ann'\n  File …", "KeyError: <value>"),
        ("Http2Error: 404 for /users/17", "Http2Error: <n> for /users/<n>"),
        (
            'OSError: [Errno 28] No space left on device: "/var/a b"',
            "OSError: [Errno <n>] No space left on device: <value>",
        ),
        ("job 01a1e119-1be0-7337-a6e0-1c9b83844220 is gone", "job <uuid> is gone"),
        ("<Lock object at 0x7f8d6c878450> is held", "<Lock object at <hex>> is held"),
        ("no commit 9fceb02d0ae598e95dc970b74767f19372d61af8 here", "no commit <hex> here"),
        ("ConnectionError: can't reach 10.0.0.17:5432, won't wait", "ConnectionError: can't reach <n>, won't wait"),
        ("app.errors.Late: after 1.5 s", "app.errors.Late: after <n> s"),
        ("the word defaced is no number", "the word defaced is no number"),
        ("", ""),
    ],
)
def test_values_are_taken_out_and_words_stay(error: str, expected: str) -> None:
    assert normalised(error) == expected
    assert normalised(expected) == expected, "and nothing more"


def test_a_fingerprint_is_of_a_kind_and_an_error() -> None:
    same = {fingerprint(failed(f"job-{number}", f"TimeoutError: after {number} s")) for number in range(3)}
    assert len(same) == 1
    assert fingerprint(failed("job", "TimeoutError: after 1 s", "other")) not in same
    assert fingerprint(failed("job", "ValueError: after 1 s")) not in same


def test_a_group_knows_its_first_and_its_latest_job() -> None:
    groups = Groups()
    for at in (5, 9, 3):
        groups.add(failed(f"at-{at}", "ValueError: no", at=at))
    (group,) = groups.largest_first()
    assert (group.count, group.example, group.first_at, group.last_at) == (3, "at-9", 3, 9)


def test_memory_does_not_grow_with_the_kinds_of_errors() -> None:
    groups = Groups()
    for number in range(MOST_GROUPS + 50):
        word = "".join(chr(ord("g") + int(digit)) for digit in str(number))
        groups.add(failed(f"job-{number}", f"ValueError: {word}"))
    found = groups.largest_first()
    assert len(found) == MOST_GROUPS + 1
    assert (found[0].text, found[0].count) == (OTHERS, 50)
