"""The command line as a person and a script use it, on a folder of jobs."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner, Result
from msgspec.structs import replace

from leasemill import __version__
from leasemill.cli import COMMANDS, main
from leasemill.cli.stats import gathered, unserved
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobState, Order, WorkerOrder
from leasemill.store.factory import open_store
from leasemill.store.worker_records import RunningJob, WorkerRecord, encode_record

TASKS = """
from leasemill import App, Context, Fail

app = App()
other = object()

@app.job(queue="mail", lane="to", retry=1)
async def send(ctx: Context, to: str, copies: int = 1) -> int:
    if to == "nobody":
        raise Fail("no such mailbox")
    return copies * 2

@app.job(queue="slow")
def crunch(number: int) -> int:
    return number
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "cli_tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEASEMILL_URL", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("cli_tasks", None)


def leasemill(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def result_of(*arguments: str) -> object:
    result = leasemill(*arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def enqueue(*arguments: str) -> str:
    result = leasemill("enqueue", "cli_tasks:app", *arguments)
    assert result.exit_code == 0, result.output
    return result.output.strip()


def drain() -> None:
    result = leasemill("worker", "cli_tasks:app", "--drain", "--log-level", "error")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_explains_itself(command: str) -> None:
    result = leasemill(command, "--help")
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: main {command}")


def test_a_job_goes_from_the_shell_through_a_worker_to_its_record() -> None:
    job_id = enqueue("send", "--args", '{"to": "ann", "copies": 3}')
    drain()
    shown = result_of("jobs", "show", job_id, "--json")
    assert isinstance(shown, dict)
    assert shown["state"] == "succeeded"
    assert shown["result"] == 6
    assert [(run["attempt"], run["status"], run["ended_by"]) for run in shown["executions"]] == [(1, "done", "ack")]
    text = leasemill("jobs", "show", job_id).output
    assert "SUCCEEDED" in text
    assert shown["executions"][0]["worker"] in text


def test_the_same_id_and_content_again_is_a_duplicate_and_other_content_a_conflict() -> None:
    enqueue("send", "--args", '{"to": "ann"}', "--id", "one")
    again = result_of("enqueue", "cli_tasks:app", "send", "--args", '{"to": "ann"}', "--id", "one", "--json")
    assert again == {"id": "one", "kind": "send", "queue": "mail", "is_duplicate": True}
    conflict = leasemill("enqueue", "cli_tasks:app", "send", "--args", '{"to": "bob"}', "--id", "one")
    assert conflict.exit_code == 1
    assert "exists with other content" in conflict.output


@pytest.mark.parametrize(
    ("arguments", "exit_code", "sentence"),
    [
        (("enqueue", "cli_tasks:app", "send", "--args", '{"to": 7}'), 2, "argument 'to'"),
        (("enqueue", "cli_tasks:app", "send", "--args", "[1]"), 2, "is not a JSON object; write for example --args"),
        (("enqueue", "cli_tasks:app", "send", "--args", "{"), 2, "is not JSON"),
        (("enqueue", "cli_tasks:app", "sned"), 1, "did you mean 'send'? (declared: crunch, send)"),
        (("enqueue", "cli_tasks:app", "send", "--args", '{"to":"a"}', "--run-at", "soon"), 2, "is not a time"),
        (
            ("enqueue", "cli_tasks:other", "send"),
            2,
            "cli_tasks:other is an object, not a leasemill.App. Did you mean cli_tasks:app?",
        ),
        (("enqueue", "cli_tasks", "send"), 2, "write MODULE:APP"),
        (("enqueue", "cli_tasks:ap", "send"), 2, "cli_tasks has no 'ap'. Did you mean cli_tasks:app?"),
        (("enqueue", "cli_tasks:app", "crunch", "--url", "memory:"), 1, "gone when this command ends"),
        (("jobs", "list", "--url", "memory:"), 1, "gone when this command ends"),
        (("stats", "--url", ""), 2, "is not the URL of a store"),
        (("stats", "--url", "file://./jobs"), 2, "write file:./jobs for a path from the working directory"),
        (("db", "status"), 2, "is not a PostgreSQL store: name one with --url"),
        (
            ("worker", "./jobs/cli_tasks.py:app"),
            2,
            "is a path: name the module instead, for example jobs.cli_tasks:app",
        ),
        (("worker", "/cli_tasks:app"), 2, "for example cli_tasks:app"),
        (("worker", ".cli_tasks:app"), 2, "is not a module's name"),
        (("worker", "cli_tasks.app:app"), 2, "there is no module 'cli_tasks.app'"),
        (("worker", "no_such_module:app"), 2, "there is no module"),
        (("worker", "cli_tasks:app", "--queue", "mail=many"), 2, "the weight must be a whole number"),
        (("worker", "cli_tasks:app", "--heartbeat", "20"), 2, "heartbeat"),
        (("worker", "cli_tasks:app", "--heartbeat", "5m"), 2, "is not a number of seconds"),
        (("enqueue", "cli_tasks:app", "send", "--delay", "5m"), 2, "is not a number of seconds"),
        (("jobs", "list"), 1, "there are no jobs in .leasemill yet"),
        (("stats", "--url", "ftp://example"), 2, "is not the URL of a store"),
        (("stats", "--url", "postgresql+psycopg://ann@host/shop"), 2, "leave out the driver, postgresql://"),
        (("stats", "--url", "file:cli_tasks.py"), 2, "cli_tasks.py is a file, not a folder"),
        (("stats", "--url", "file:."), 2, ". is not a Leasemill folder and not empty (it holds "),
        (("wal", "clock", "postgresql://ann@host/shop"), 2, "the clock of a PostgreSQL store is its server's"),
        (("serve", "--url", "http://127.0.0.1:7411"), 2, "is a server already"),
        (("job", "list"), 2, "No such command 'job'; did you mean 'jobs'?"),
        (("mill",), 2, "No such command 'mill'."),
        (("enqueue", "cli_tasks:app", "send", "--args", '{"too": "a"}'), 2, "unexpected keyword argument 'too'"),
    ],
)
def test_a_wrong_call_gets_a_sentence_and_an_exit_code(
    arguments: tuple[str, ...], exit_code: int, sentence: str
) -> None:
    result = leasemill(*arguments)
    assert (result.exit_code, sentence in result.output) == (exit_code, True), result.output
    assert "Traceback" not in result.output


def test_a_worker_that_drains_ends_when_no_server_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasemill.store.http.retry_policy.PATIENCE_S", 0.05)
    result = leasemill("worker", "cli_tasks:app", "--drain", "--url", "http://127.0.0.1:1")
    assert result.exit_code == 3, result.output
    assert "cannot be reached" in result.output


def test_a_worker_on_memory_warns_that_no_other_process_can_enqueue_for_it() -> None:
    result = leasemill("worker", "cli_tasks:app", "--drain", "--url", "memory:")
    assert result.exit_code == 0, result.output
    assert "this worker runs only jobs that its own code enqueues" in result.output


def test_looking_makes_no_store(project: Path) -> None:
    leasemill("stats")
    assert not (project / ".leasemill").exists()


def test_jobs_are_listed_by_what_is_asked_for() -> None:
    ids = [enqueue("send", "--args", json.dumps({"to": name})) for name in ("ann", "bob", "nobody")]
    other = enqueue("crunch", "--args", '{"number": 1}')
    drain()
    failed = result_of("jobs", "list", "--state", "failed", "--json")
    assert isinstance(failed, dict)
    assert [(job["id"], job["error"].partition(" ")[2]) for job in failed["jobs"]] == [(ids[2], "no such mailbox")]
    slow = result_of("jobs", "list", "--queue", "slow", "--json")
    assert isinstance(slow, dict)
    assert [job["id"] for job in slow["jobs"]] == [other]
    assert "no such mailbox" in leasemill("jobs", "list").output


@pytest.mark.parametrize(("order", "step"), [((), -1), (("--oldest-first",), 1)])
def test_jobs_are_listed_newest_first_or_oldest_first_page_by_page(order: tuple[str, ...], step: int) -> None:
    ids = [enqueue("send", "--args", json.dumps({"to": name})) for name in ("ann", "bob", "cy", "dan")]
    first = result_of("jobs", "list", *order, "--limit", "3", "--json")
    assert isinstance(first, dict)
    rest = result_of("jobs", "list", *order, "--cursor", str(first["cursor"]), "--json")
    assert isinstance(rest, dict)
    assert [job["id"] for job in first["jobs"] + rest["jobs"]] == ids[::step]
    assert rest["cursor"] is None
    page = leasemill("jobs", "list", *order, "--limit", "3")
    assert page.stderr == f"next page: {' '.join((*order, '--cursor'))} {first['cursor']}\n"


def test_a_job_that_is_not_due_is_shown_as_scheduled() -> None:
    now = enqueue("send", "--args", '{"to": "ann"}')
    later = enqueue("send", "--args", '{"to": "bob"}', "--delay", "7200")
    rows = [line.split() for line in leasemill("jobs", "list").stdout.splitlines()[1:]]
    assert [row[:3] for row in rows] == [[later, "scheduled", "in"], [now, "ready", "now"]]
    assert "SCHEDULED" in leasemill("jobs", "show", later).output
    shown = result_of("jobs", "show", later, "--json")
    assert isinstance(shown, dict)
    assert shown["state"] == "ready"


def test_a_failed_job_is_redriven_and_runs_again() -> None:
    job_id = enqueue("send", "--args", '{"to": "nobody"}')
    drain()
    dry = result_of("jobs", "redrive", "--state", "failed", "--reason", "mailbox made", "--dry-run", "--json")
    assert dry == {"job_ids": [job_id], "left_alone": [], "is_dry_run": True}
    done = result_of("jobs", "redrive", "--state", "failed", "--reason", "mailbox made", "--json")
    assert done == {"job_ids": [job_id], "left_alone": [], "is_dry_run": False}
    drain()
    shown = result_of("jobs", "show", job_id, "--json")
    assert isinstance(shown, dict)
    assert shown["attempts"] == 2


def test_a_job_is_explained_to_people_and_to_scripts() -> None:
    job_id = enqueue("send", "--args", '{"to": "nobody"}')
    waiting = leasemill("jobs", "explain", job_id)
    assert waiting.output.splitlines()[0] == f"Job '{job_id}' (send, queue 'mail', lane 'nobody') is READY."
    assert "no running worker serves queue 'mail'" in waiting.output
    assert waiting.output.splitlines()[-1] == "  -> leasemill worker MODULE:APP --queue mail"
    drain()
    failed = result_of("jobs", "explain", job_id, "--json")
    assert isinstance(failed, dict)
    assert (failed["job_id"], failed["state"], failed["situation"]) == (job_id, "failed", "failed")
    assert failed["now"][-1] == "The error: Fail: no such mailbox."
    unknown = leasemill("jobs", "explain", "nothing")
    assert (unknown.exit_code, "there is no job 'nothing'" in unknown.output) == (1, True)


def test_actions_on_limits_are_listed_by_their_verb(project: Path) -> None:
    enqueue("send", "--args", '{"to": "ann"}')
    assert leasemill("limits", "set", "queue:mail", "--places", "2", "--reason", "slow", "--create").exit_code == 0
    assert leasemill("queues", "pause", "mail", "--reason", "slow").exit_code == 0
    listed = json.loads(leasemill("actions", "--verb", "set_limit", "--json").output)
    assert [act["target"] for act in listed] == ["queue:mail"]


def test_a_job_is_cancelled_and_purged_and_the_acts_are_kept(project: Path) -> None:
    job_id = enqueue("send", "--args", '{"to": "ann"}')
    done = leasemill("jobs", "cancel", job_id, "--reason", "a mistake", "--by", "ann")
    assert (done.exit_code, done.stdout, done.stderr) == (0, f"{job_id}\n", "1 job cancelled\n")
    again = leasemill("jobs", "cancel", job_id, "--reason", "a mistake")
    left = f"{job_id} was skipped: it is CANCELLED\n0 jobs cancelled\n"
    assert (again.exit_code, again.stdout, again.stderr) == (0, "", left), "a repeat is no failure"
    assert leasemill("jobs", "cancel", "nothing", "--reason", "a mistake").exit_code == 1
    assert result_of("jobs", "purge", "--id", job_id, "--reason", "tidy", "--json") == {
        "job_ids": [job_id],
        "left_alone": [],
        "is_dry_run": False,
    }
    assert leasemill("jobs", "show", job_id).exit_code == 1
    with open_store(f"file:{project / '.leasemill'}") as store:
        assert [(action.verb, action.by, action.reason) for action in store.actions()] == [
            ("purge", store.actions()[0].by, "tidy"),
            ("cancel", "ann", "a mistake"),
        ]


def test_an_act_needs_a_reason() -> None:
    job_id = enqueue("send", "--args", '{"to": "ann"}')
    refused = leasemill("jobs", "cancel", job_id)
    assert refused.exit_code == 2
    assert "Missing option '--reason'. Say why you do this: it is recorded in the audit trail" in refused.output
    assert result_of("actions", "--json") == []


def test_what_was_done_to_many_jobs_is_one_action() -> None:
    ids = [enqueue("send", "--args", '{"to": "ann"}') for _ in range(3)]
    for job_id in ids:
        leasemill("jobs", "cancel", job_id, "--reason", "a mistake", "--by", "ann")
    assert f"{ids[0]} and 2 others" in leasemill("actions").output
    found = result_of("actions", "--target", ids[2], "--json")
    assert isinstance(found, list)
    (act,) = found
    assert (act["count"], act["targets"]) == (3, ids)
    assert act["first_at"] < act["at"]


def test_a_paused_queue_gives_no_job_until_it_is_resumed() -> None:
    job_id = enqueue("send", "--args", '{"to": "ann"}')
    assert leasemill("queues", "pause", "mail", "--reason", "maintenance").output == "queue mail paused\n"
    drain()
    assert "paused" in leasemill("queues", "list").output
    assert leasemill("queues", "resume", "mail", "--reason", "done").output == "queue mail resumed\n"
    drain()
    shown = result_of("jobs", "show", job_id, "--json")
    assert isinstance(shown, dict)
    assert shown["state"] == "succeeded"


@pytest.mark.parametrize("command", [("pause",), ("resume",), ("set", "--lease", "60")])
def test_a_queue_that_is_not_there_is_refused_with_names_like_it(command: tuple[str, ...]) -> None:
    enqueue("send", "--args", '{"to": "ann"}')
    name, *options = command
    refused = leasemill("queues", name, "mial", *options, "--reason", "maintenance")
    assert refused.exit_code == 1
    assert "there is no queue 'mial'; did you mean 'mail'? Known queues: mail." in refused.output
    assert result_of("actions", "--json") == []
    made = leasemill("queues", name, "mial", *options, "--create", "--reason", "maintenance")
    assert made.exit_code == 0, made.output


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (("--lease", "0"), "--lease is 0 s; it must be at least 0.001 s"),
        (("--timeout", "0"), "--timeout is 0 s; it must be more than 0 s"),
        (("--backoff-base", "-1"), "--backoff-base is -1 s; it must not be negative"),
        (("--max-retries", "-1"), "-1 is not in the range 0<=x<=1000"),
    ],
)
def test_a_policy_out_of_bounds_is_refused_in_the_users_units(option: tuple[str, str], sentence: str) -> None:
    enqueue("send", "--args", '{"to": "ann"}')
    refused = leasemill("queues", "set", "mail", *option, "--reason", "why not")
    assert (refused.exit_code, sentence in refused.output) == (2, True), refused.output


def test_a_queues_policy_is_set_option_by_option() -> None:
    enqueue("send", "--args", '{"to": "ann"}')
    result_of("queues", "set", "mail", "--lease", "60", "--reason", "slow host", "--json")
    after = result_of("queues", "set", "mail", "--max-retries", "7", "--reason", "flaky host", "--json")
    assert after == {"queue": "mail", "policy": {"max_retries": 7, "lease_ttl_s": 60.0}, "limit": None}
    cleared = result_of("queues", "set", "mail", "--clear", "--reason", "all well", "--json")
    assert cleared == {"queue": "mail", "policy": {}, "limit": None}
    nothing = leasemill("queues", "set", "mail", "--reason", "why not")
    assert nothing.exit_code == 2
    wrong = leasemill("queues", "set", "mail", "--backoff-base", "60", "--reason", "why not")
    assert (wrong.exit_code, "cap" in wrong.output) == (2, True)


def test_stats_count_and_health_tells_whether_workers_are_there() -> None:
    enqueue("send", "--args", '{"to": "ann"}')
    found = result_of("stats", "--json")
    assert isinstance(found, dict)
    assert found["queues"]["mail"]["jobs"]["ready"] == 1
    assert found["queues"]["mail"]["due_in_us"] == 0
    assert "due" in leasemill("stats").output
    assert result_of("workers", "--json") == []
    unhealthy = leasemill("health", "--max-age", "5")
    assert (unhealthy.exit_code, unhealthy.output) == (1, "unhealthy: no worker has sent a heartbeat\n")


@pytest.mark.parametrize(("slots", "exit_code"), [(2, 0), (1, 1)])
def test_workers_and_health_show_slots_whose_handlers_do_not_return(project: Path, slots: int, exit_code: int) -> None:
    enqueue("send", "--args", '{"to": "ann"}')
    stuck = [RunningJob("job-1", "send", 2, 12.3)]
    record = WorkerRecord("w1", "host", 7, 0.0, 10.0, 2.0, {"mail": 1}, slots, False, [], {}, stuck=stuck)
    with open_store(f"file:{project / '.leasemill'}") as store:
        store.presence.publish("w1", encode_record(record))
    shown = leasemill("workers").output
    assert f"1/{slots}" in shown
    assert "running, 1 stuck" in shown
    assert "w1 is stuck in send job-1: attempt 2 is over, and its handler has not returned after 12.3 s" in shown
    found = leasemill("health", "--worker", "w1")
    assert found.exit_code == exit_code
    assert f"1 of {slots} slots are stuck" in found.output
    health = leasemill("health", "--json")
    assert health.exit_code == exit_code
    assert '"stuck": 1' in health.output


def test_stats_name_queues_with_due_jobs_that_no_worker_serves(project: Path) -> None:
    enqueue("send", "--args", '{"to": "ann"}')
    enqueue("crunch", "--args", '{"number": 1}')
    line = "no worker serves: mail (1 job), slow (1 job) (see `leasemill workers`)"
    assert line in leasemill("stats").output
    quiet = WorkerOrder("", Order.QUIET, 0, "ada", "why")
    record = WorkerRecord("w1", "host", 7, 0.0, 10.0, 2.0, {"mail": 1, "slwo": 1}, 2, False, [], {})
    with open_store(f"file:{project / '.leasemill'}") as store:
        store.presence.publish("w1", encode_record(record))
        assert [(name, one["is_served"]) for name, one in gathered(store)["queues"].items()] == [
            ("mail", True),
            ("slow", False),
        ]
        assert "no worker serves: slow (1 job) (see" in leasemill("stats").output
        for idle in (replace(record, order=quiet), replace(record, is_stopping=True)):
            store.presence.publish("w1", encode_record(idle))
            assert line in leasemill("stats").output
        store.pause("slow", by="ada", reason="why")
        assert "no worker serves: mail (1 job) (see" in leasemill("stats").output


def test_a_queue_that_no_worker_serves_may_be_a_typo() -> None:
    queues = {
        "mail": {"jobs": {"ready": 0}, "is_served": True, "is_paused": False, "due_in_us": None},
        "mial": {"jobs": {"ready": 3}, "is_served": False, "is_paused": False, "due_in_us": 0},
        "later": {"jobs": {"ready": 3}, "is_served": False, "is_paused": False, "due_in_us": 5},
    }
    assert unserved(queues) == ["mial (3 jobs; did you mean 'mail'?)"]


def test_stats_name_the_kinds_that_do_not_match_the_code_of_the_workers() -> None:
    record = WorkerRecord(
        worker="old-1",
        host="mill",
        pid=1,
        started_at=time.time(),
        published_at=time.time(),
        interval_s=2.0,
        queues={"mail": 1},
        concurrency=1,
        is_stopping=False,
        running=[],
        counters={},
        mismatched={"send_fax": 1_200, "send": 3},
    )
    enqueue("send", "--args", '{"to": "ann"}')
    with open_store("file:./.leasemill") as store:
        store.presence.publish("old-1", encode_record(record))
    found = result_of("stats", "--json")
    assert isinstance(found, dict)
    assert found["mismatched"] == {"send_fax": 1_200, "send": 3}
    line = "jobs that do not match the code of their workers: send_fax (1,200 claims), send (3 claims)"
    assert line in leasemill("stats").output


def test_every_state_has_a_column() -> None:
    enqueue("send", "--args", '{"to": "ann"}')
    header = leasemill("stats").output.splitlines()[0].split()
    assert header == ["queue", *(state.value for state in JobState), "next"]


# Which store ----------------------------------------------------------------------------------------------------

EXPLICIT = """
from leasemill import App

app = App("file:./code")

@app.job
def work() -> None: ...
"""


@pytest.mark.parametrize(
    ("target", "options", "variable", "folder"),
    [
        ("cli_tasks:app", (), None, ".leasemill"),
        ("cli_tasks:app", (), "file:./variable", "variable"),
        ("cli_tasks:app", ("--url", "file:./option"), "file:./variable", "option"),
        ("cli_explicit:app", (), None, "code"),
        ("cli_explicit:app", (), "file:./variable", "code"),
        ("cli_explicit:app", ("--url", "file:./option"), "file:./variable", "option"),
    ],
)
def test_the_url_option_wins_over_the_apps_url_and_that_over_the_environment(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    options: tuple[str, ...],
    variable: str | None,
    folder: str,
) -> None:
    (project / "cli_explicit.py").write_text(EXPLICIT)
    monkeypatch.setitem(sys.modules, "cli_explicit", None)
    monkeypatch.delitem(sys.modules, "cli_explicit")
    if variable is not None:
        monkeypatch.setenv("LEASEMILL_URL", variable)
    kind = ("crunch", "--args", '{"number": 1}') if target == "cli_tasks:app" else ("work",)
    enqueued = leasemill("enqueue", target, *kind, *options)
    assert enqueued.exit_code == 0, enqueued.output
    drained = leasemill("worker", target, "--drain", "--log-level", "error", *options)
    assert drained.exit_code == 0, drained.output
    shown = result_of("jobs", "show", enqueued.output.strip(), "--url", f"file:./{folder}", "--json")
    assert isinstance(shown, dict)
    assert shown["state"] == "succeeded"
    assert [path.name for path in project.iterdir() if (path / "manifest").exists()] == [folder]


def test_reading_commands_take_the_url_option_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEMILL_URL", "file:./variable")
    assert "in variable yet" in leasemill("stats").output
    assert "in option yet" in leasemill("stats", "--url", "file:./option").output


# The user's module ----------------------------------------------------------------------------------------------


def test_a_module_that_cannot_be_imported_shows_its_own_traceback_and_none_of_ours(project: Path) -> None:
    (project / "cli_broken.py").write_text("def begin():\n    import no_such_library\n\nbegin()\n")
    result = leasemill("worker", "cli_broken:app")
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line.strip() for line in lines if line.startswith("  File")] == [
        f'File "{project}/cli_broken.py", line 4, in <module>',
        f'File "{project}/cli_broken.py", line 2, in begin',
    ]
    error = "ModuleNotFoundError: No module named 'no_such_library'"
    hint = "install 'no_such_library', or use the environment where it is installed"
    assert lines[-1] == f"Error: cli_broken cannot be imported: {error}; {hint}"


def test_a_queue_that_no_declared_job_uses_is_warned_of() -> None:
    result = leasemill("worker", "cli_tasks:app", "--queue", "mial", "--drain")
    assert result.exit_code == 0
    assert (
        "no declared job uses queue 'mial'; did you mean 'mail'? (queues of declared jobs: mail, slow)" in result.output
    )


# The entry ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("--version",), ("version",)])
def test_the_version_is_printed(arguments: tuple[str, ...]) -> None:
    assert leasemill(*arguments).output == f"leasemill {__version__}\n"


def test_the_package_runs_as_a_module(project: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "leasemill", "stats"], capture_output=True, text=True, cwd=project, check=False
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("Error: there are no jobs in .leasemill yet")


@pytest.mark.parametrize("debugging", [False, True])
def test_an_unexpected_error_is_one_line_and_a_traceback_only_when_asked_for(
    debugging: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(url: str) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("leasemill.cli.store_options.open_store", fail)
    enqueue("send", "--args", '{"to": "ann"}')
    result = leasemill(*(("--debug",) if debugging else ()), "stats")
    assert result.exit_code == 70
    assert "Error: unexpected KeyError: 'surprise'" in result.output.splitlines()[-1]
    assert ("Traceback" in result.output) == debugging
    assert ("in fail" in result.output) == debugging


def test_the_variable_asks_for_tracebacks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEMILL_DEBUG", "1")
    result = leasemill("stats")
    assert result.exit_code == 1
    assert "Traceback" in result.output


def test_a_pipe_whose_reader_has_gone_ends_quietly() -> None:
    enqueue("send", "--args", '{"to": "ann"}')
    listing = f"{shlex.quote(sys.executable)} -m leasemill wal dump .leasemill"
    ran = subprocess.run(f"{listing} | true", shell=True, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("leasemill jo", ["jobs"]),
        ("leasemill jobs re", ["redrive"]),
        ("leasemill jobs list --state d", ["dead"]),
        ("leasemill worker cli_tasks:app --max-", ["--max-jobs", "--max-memory"]),
    ],
)
def test_the_shell_completes_commands_options_and_values(words: str, completions: list[str]) -> None:
    *before, last = words.split()[1:]
    shell = BashComplete(main, {}, "leasemill", "_LEASEMILL_COMPLETE")
    assert [one.value for one in shell.get_completions(before, last)] == completions


def test_scheduled_is_a_state_to_filter_by_as_it_is_one_to_read() -> None:
    enqueue("crunch", "--args", '{"number": 1}', "--id", "now")
    enqueue("crunch", "--args", '{"number": 2}', "--id", "later", "--delay", "3600")

    def listed(*states: str) -> list[str]:
        found = result_of("jobs", "list", "--json", *(f"--state={state}" for state in states))
        assert isinstance(found, dict)
        return [job["id"] for job in found["jobs"]]

    assert listed("scheduled") == ["later"]
    assert listed("ready") == listed("ready", "scheduled") == ["later", "now"]
    cancelled = result_of("jobs", "cancel", "--state", "scheduled", "--reason", "not needed", "--json")
    assert isinstance(cancelled, dict)
    assert cancelled["job_ids"] == ["later"]


def test_a_job_that_succeeded_in_the_end_shows_no_old_error() -> None:
    enqueue("crunch", "--args", '{"number": 1}', "--id", "one")
    with open_store("file:./.leasemill") as store:
        for outcome in ("fails", "succeeds"):
            (lease,) = store.claim("w", ["slow"], 1)
            if outcome == "fails":
                store.nack([c.NackReport("one", lease.token, "ValueError: once", delay_us=0)])
            else:
                store.ack([c.AckReport("one", lease.token)])
    found = result_of("jobs", "show", "one", "--json")
    assert isinstance(found, dict)
    assert (found["state"], found["error"]) == ("succeeded", None)
    assert found["executions"][0]["error"] == "ValueError: once"
    assert "ValueError" not in leasemill("jobs", "list").output


def test_states_know_whether_they_are_an_end() -> None:
    assert {state.value for state in JobState if state.has_ended} == {"succeeded", "failed", "dead", "cancelled"}
