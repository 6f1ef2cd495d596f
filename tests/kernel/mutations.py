"""Faults put into the kernel on purpose, to see that the tests notice: `make mutants`.

Each mutation takes one rule out of a copy of the source. A test of the conformance suite, which every store is held
to, must fail on it and name that rule; whether the kernel's own tests notice is told beside it. Text that is not found
is an error: a mutation that no longer applies must be written anew, not passed over.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leasemill.testing.conformance import ConformanceSuite

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = ROOT / "src"
KERNEL: Final = Path("leasemill/kernel")
SUITES: Final = {
    "conformance": ("tests/store/test_conformance.py",),
    "kernel": tuple(f"tests/kernel/test_{name}.py" for name in ("table", "retry", "events", "order", "histories")),
}
LONGEST_S: Final = 300


@dataclass(frozen=True)
class Mutation:
    """`changes`: in a file of the kernel, this text becomes that one."""

    name: str
    rules: str
    changes: tuple[tuple[str, str, str], ...]


def mutation(name: str, rules: str, *changes: tuple[str, str, str]) -> Mutation:
    return Mutation(name, rules, changes)


MUTATIONS: Final = (
    mutation(
        "the token is not checked",
        "L2 I2",
        ("fence.py", "        if execution.token == token:\n            return execution", "        return execution"),
    ),
    mutation(
        "the time is not checked",
        "L1 L3",
        (
            "fence.py",
            "return execution is not None and execution.status in LIVE and now < execution.expires_at",
            "return execution is not None and execution.status in LIVE",
        ),
        (
            "fence.py",
            "(execution.status in LIVE and now < execution.expires_at)",
            "execution.status in LIVE",
        ),
    ),
    mutation(
        "a refused lease may be revived",
        "L3",
        (
            "fence.py",
            "    if execution is not None and execution.status in LIVE:\n        events.append(expire_one",
            "    if False:\n        events.append(expire_one",
        ),
    ),
    mutation(
        "expiry after commit gives the job back",
        "X5 X4",
        (
            "ending.py",
            "COMMITTED:\n        return done_after_commit(execution, Verb.EXPIRE",
            "DONE:\n        return done_after_commit(execution, Verb.EXPIRE",
        ),
    ),
    mutation(
        "nack after commit gives the job back",
        "X5 X4",
        (
            "verbs/nack.py",
            "COMMITTED:\n        return (done_after_commit(execution, Verb.NACK",
            "DONE:\n        return (done_after_commit(execution, Verb.NACK",
        ),
    ),
    mutation(
        "release after commit gives the job back",
        "X5 X4",
        (
            "verbs/release.py",
            "    if execution.status is ExecutionStatus.COMMITTED:\n        done = done_after_commit",
            "    if False:\n        done = done_after_commit",
        ),
    ),
    mutation(
        "cancel after commit kills the job",
        "X5",
        (
            "verbs/cancel.py",
            "if execution is not None and execution.status is ExecutionStatus.COMMITTED:",
            "if execution is not None and execution.status is ExecutionStatus.LEASED and False:",
        ),
    ),
    mutation(
        "a repeated commit commits again",
        "X4 L6",
        (
            "verbs/commit.py",
            "if execution is not None and execution.committed_by is Verb.COMMIT:",
            "if execution is not None and False:",
        ),
    ),
    mutation(
        "a repeated ack is refused",
        "L6",
        (
            "verbs/ack.py",
            "if job is not None and execution is not None and execution.status is ExecutionStatus.DONE:",
            "if job is not None and execution is not None and False:",
        ),
    ),
    mutation(
        "a repeated nack is refused",
        "L6",
        (
            "verbs/nack.py",
            "        if repeated is not None:\n            return (), repeated",
            "        if repeated is not None and False:\n            return (), repeated",
        ),
    ),
    mutation(
        "a repeated release is refused",
        "L6",
        ("verbs/release.py", "        if execution.ended_by is Verb.RELEASE:", "        if False:"),
    ),
    mutation(
        "a repeated claim claims again",
        "C5",
        (
            "verbs/claim.py",
            "    if repeated:\n        return (), repeated",
            "    if False:\n        return (), repeated",
        ),
    ),
    mutation(
        "a kept failure counts again when it is repeated",
        "N11",
        (
            "verbs/nack.py",
            "if report.keep_lease and kept is not None and kept.report_id == report.report_id:",
            "if False and report.keep_lease and kept is not None and kept.report_id == report.report_id:",
        ),
    ),
    mutation(
        "a token is granted twice",
        "I2",
        ("verbs/claim.py", "        if execution_of(job, token) is not None:\n", "        if False:\n"),
    ),
    mutation(
        "a refusal is not kept",
        "L5",
        (
            "fence.py",
            "        events.append(ReportRefused(job_id, token, verb, worker, attempt, job.attempt, reason, now))",
            "        pass",
        ),
    ),
    mutation(
        "a refusal is kept every time",
        "L5",
        (
            "fence.py",
            "refusal.token == token and refusal.verb is verb for refusal in job.refusals",
            "False for refusal in job.refusals",
        ),
    ),
    mutation(
        "jobs behind a lane's head can be claimed",
        "N1 N2 N3",
        (
            "lanes.py",
            "    lane.waiting_count += 1\n    return False",
            "    lane.waiting_count += 1\n    return True",
        ),
    ),
    mutation(
        "the next in the lane is not made head",
        "N4",
        ("lanes.py", "    lane.head = None\n    head = next_in_lane(state, lane)", "    lane.head = head = None"),
    ),
    mutation(
        "a failed head never blocks its lane",
        "N5",
        (
            "ending.py",
            "    return job.spec.lane is not None and terms.on_failure is OnFailure.BLOCK",
            "    return job.spec.lane is not None and terms.on_failure is OnFailure.BLOCK and False",
        ),
    ),
    mutation(
        "retries have no bound",
        "F2",
        ("retry.py", "    return job.retries >= terms.max_retries", "    return False"),
    ),
    mutation(
        "one retry too many",
        "F2",
        ("retry.py", "    return job.retries >= terms.max_retries", "    return job.retries > terms.max_retries"),
    ),
    mutation(
        "expiry uses a retry",
        "F3",
        (
            "verbs/expire.py",
            "    execution.reason = AbortReason.EXPIRED\n",
            "    execution.reason = AbortReason.EXPIRED\n    job.retries += 1\n",
        ),
    ),
    mutation(
        "nobody is quarantined",
        "F4",
        ("retry.py", "    return job.expirations + 1 >= terms.max_expirations", "    return False"),
    ),
    mutation(
        "expirations before a start are counted",
        "F4",
        (
            "verbs/expire.py",
            "    if execution.status is ExecutionStatus.STARTED:\n        job.expirations += 1",
            "    job.expirations += 1",
        ),
    ),
    mutation(
        "the back-off has no cap",
        "F1",
        ("retry.py", "LONGEST_EXPONENT), terms.backoff_cap_us)", "LONGEST_EXPONENT), 2**60)"),
    ),
    mutation(
        "pause is ignored",
        "C6 O3",
        ("verbs/claim.py", "        if queue is None or queue.is_paused:\n", "        if queue is None:\n"),
    ),
    mutation(
        "jobs are given before they are due",
        "C1 E3",
        (
            "verbs/claim.py",
            "            found = order.first(left, now)",
            "            found = order.first(left, 2**63)",
        ),
    ),
    mutation(
        "the lowest priority goes first",
        "C2",
        ("verbs/claim.py", "range(PRIORITIES - 1, -1, -1)", "range(PRIORITIES)"),
    ),
    mutation(
        "claim records no expiries",
        "L7",
        (
            "verbs/claim.py",
            "if leases or not do(expire.decide(state, Expire(command.limit), now)):",
            "if True:",
        ),
    ),
    mutation(
        "the fence stands still",
        "I3",
        ("verbs/claim.py", "        fence += 1\n", "        fence = max(fence, 1)\n"),
    ),
    mutation(
        "other content counts as the same job",
        "E4",
        (
            "verbs/enqueue.py",
            "(Duplicate(job.id) if known.spec == job else Conflict(job.id))",
            "Duplicate(job.id)",
        ),
    ),
    mutation(
        "a conflicting follow-up is passed over",
        "X6",
        ("verbs/commit.py", "        if isinstance(outcome, Conflict):", "        if False:"),
    ),
    mutation(
        "extend may shorten a lease",
        "L9",
        ("verbs/extend.py", "    if until <= execution.expires_at:", "    if until == execution.expires_at:"),
    ),
    mutation(
        "the kind's policy goes before the job's",
        "I5",
        ("retry.py", "for policy in reversed(layers)", "for policy in layers"),
    ),
    mutation(
        "a redriven job keeps its counts",
        "O2",
        ("verbs/redrive.py", "    job.retries = 0\n    job.expirations = 0\n", ""),
    ),
    mutation(
        "live jobs can be purged",
        "O5",
        (
            "model.py",
            "ENDED_STATES: Final = UNSUCCESSFUL_STATES | {JobState.SUCCEEDED}",
            "ENDED_STATES: Final = UNSUCCESSFUL_STATES | {JobState.READY, JobState.SUCCEEDED}",
        ),
    ),
    mutation(
        "an operator's act is not kept",
        "O8",
        ("verbs/cancel.py", "    record(state, Verb.CANCEL, event.job_id, event)\n", ""),
    ),
    mutation(
        "offsets are acquired out of order",
        "N8",
        (
            "verbs/acquire.py",
            "        if head.spec.offset != request.offset:\n            return (), OutOfOrder",
            "        if False:\n            return (), OutOfOrder",
        ),
    ),
    mutation(
        "finished offsets are forgotten",
        "N10",
        ("lanes.py", "    lane.finished.add(spec.offset)\n", ""),
    ),
    mutation(
        "acquired leases end like others",
        "N9",
        ("retry.py", "        lease_ttl_us=NEVER,\n        timeout_us=NEVER,", "        lease_ttl_us=30_000_000,"),
    ),
)


def mutated(wanted: Mutation) -> dict[str, str]:
    """The changed files by name; every text must be found exactly once."""
    files: dict[str, str] = {}
    for name, old, new in wanted.changes:
        text = files.get(name) or (SOURCE / KERNEL / name).read_text()
        if text.count(old) != 1:
            raise ValueError(f"{wanted.name}: this is in {name} {text.count(old)} times, not once:\n{old}")
        files[name] = text.replace(old, new)
    return files


@dataclass(frozen=True)
class Verdict:
    mutation: Mutation
    caught_by: dict[str, str | None]
    seconds: float

    @property
    def survived(self) -> bool:
        return self.caught_by["conformance"] is None


def judge(wanted: Mutation) -> Verdict:
    """Run the tests on a mutated copy of the source; which test fails first?"""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="leasemill-mutant-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for name, text in mutated(wanted).items():
            (copy / KERNEL / name).write_text(text)
        caught_by = {
            "conformance": next((test for test in failures(copy, "conformance") if proves(test, wanted)), None),
            "kernel": next(iter(failures(copy, "kernel", "-x")), None),
        }
    return Verdict(wanted, caught_by, time.monotonic() - began)


def proves(test: str, wanted: Mutation) -> bool:
    """Whether the test names a rule that the mutation takes out."""
    named = getattr(getattr(ConformanceSuite, test.partition("[")[0], None), "__rules__", ())
    return not set(wanted.rules.split()).isdisjoint(named)


def failures(source: Path, suite: str, *more: str) -> list[str]:
    """The names of the tests that fail on this source."""
    options = ["-q", *more, "--no-header", "--tb=no", "-p", "no:cacheprovider", "--timeout=60"]
    environment = os.environ | {
        "PYTHONPATH": str(source),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_PROFILE": "unshrunk",
    }
    command = [sys.executable, "-m", "pytest", *options, *SUITES[suite]]
    try:
        completed = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=LONGEST_S
        )
    except subprocess.TimeoutExpired:
        return ["(it never ended)"]
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", completed.stdout, re.MULTILINE)
    if completed.returncode != 0 and not failed:
        raise RuntimeError(f"pytest said nothing of use:\n{completed.stdout}\n{completed.stderr}")
    return [name.rpartition("::")[2] for name in failed]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutations whose name has one of these words")
    parser.add_argument("--sample", type=int, metavar="N", help="only N of them, drawn at random")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="of the draw, to repeat it")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    wanted = [one for one in MUTATIONS if not options.words or any(word in one.name for word in options.words)]
    if options.sample is not None and options.sample < len(wanted):
        say(f"{options.sample} of {len(wanted)} mutations, drawn with --seed {options.seed}")
        wanted = random.Random(options.seed).sample(wanted, options.sample)
    with ThreadPoolExecutor(options.processes) as pool:
        verdicts = list(pool.map(judge, wanted))
    say("| mutation | rules | caught by the conformance suite | caught by the kernel's tests | seconds |")
    say("|---|---|---|---|---|")
    for one in verdicts:
        conformance, kernel = (one.caught_by[suite] or "–" for suite in SUITES)
        say(f"| {one.mutation.name} | {one.mutation.rules} | {conformance} | {kernel} | {one.seconds:.1f} |")
    survivors = [one.mutation.name for one in verdicts if one.survived]
    say(
        f"{len(verdicts)} mutations, {len(survivors)} survived" + "".join(f"\n  survived: {name}" for name in survivors)
    )
    return 1 if survivors else 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
