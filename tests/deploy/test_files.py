"""The files of `deploy/` agree with the command line, with the metrics, with the runbooks, and with each other."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from leasemill.cli import main
from leasemill.worker.prometheus.catalogue import METRICS
from tests.deploy.files import (
    DEPLOY,
    RULES,
    RULES_TEST,
    UNITS,
    command_lines,
    compose,
    dashboard,
    health_check,
    instruction,
    instructions,
    manifests,
    option,
    pod,
    queries,
    rules,
    seconds,
    unit,
    worker_container,
)
from tests.deploy.tools import run_tool
from tests.docs.pages import ROOT, named_commands
from tests.docs.test_snippets import parse

RUNBOOKS = ROOT / "docs" / "runbooks"
SELECTOR = re.compile(r"\b(leasemill_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)=~?"([^"]*)"')
OUTER_LABELS = {"instance", "job", "le"}


def metric_of(name: str) -> str:
    """The metric that a series belongs to."""
    return name if name in METRICS else re.sub(r"_(bucket|sum|count)$", "", name)


# Command lines ---------------------------------------------------------------------------------------------------


def test_every_command_line_is_one() -> None:
    found = list(command_lines())
    assert {where.partition(":")[0] for where, _ in found} == {
        "Dockerfile",
        "compose.yaml",
        "kubernetes.yaml",
        *(path.name for path in UNITS),
    }
    assert len(found) >= 10
    for where, arguments in found:
        try:
            parse(main, "leasemill", arguments)
        except click.UsageError as error:
            pytest.fail(f"{where}: leasemill {' '.join(arguments)}: {error.format_message()}")


def test_whoever_stops_a_worker_waits_longer_than_the_worker_for_its_jobs() -> None:
    allowed: dict[str, int] = {
        "Dockerfile": seconds(compose()["services"]["worker"]["stop_grace_period"]),
        "kubernetes.yaml": pod("Deployment")["terminationGracePeriodSeconds"],
        **{path.name: seconds(unit(path)["Service"]["TimeoutStopSec"]) for path in UNITS},
    }
    workers = [(where, arguments) for where, arguments in command_lines() if arguments[0] == "worker"]
    assert {where.partition(":")[0] for where, _ in workers} == set(allowed)
    for where, arguments in workers:
        own = seconds(option(arguments, "--shutdown-timeout"))
        assert allowed[where.partition(":")[0]] > own + 5, where


def test_every_worker_has_the_id_that_its_probe_asks_for() -> None:
    for where, arguments in command_lines():
        if where == "Dockerfile":
            name = {"worker": "--worker-id", "health": "--worker"}[arguments[0]]
            assert option(arguments, name) == "$HOSTNAME"
        if where == "kubernetes.yaml: worker":
            name = {"worker": "--worker-id", "health": "--worker"}[arguments[0]]
            assert option(arguments, name) in ("$POD_NAME", "$(POD_NAME)")
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        command = worker_container()[probe]["exec"]["command"]
        assert command[:2] == ["sh", "-c"], "in a probe no variable is replaced but by a shell"


# systemd ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_reads_the_unit(path: Path, tmp_path: Path) -> None:
    """With the program where it is here: it must exist."""
    program = Path(sys.executable).parent / "leasemill"
    copy = tmp_path / path.name
    copy.write_text(path.read_text().replace("/opt/app/venv/bin/leasemill", str(program)))
    assert str(program) in copy.read_text()
    assert run_tool("systemd-analyze", "systemd", "verify", "--man=no", str(copy), folder=tmp_path) == ""


def test_systemd_does_not_read_a_wrong_unit(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.service"
    wrong.write_text("[Service]\nExecStart=/no/such/program\nRestart=sometimes\n")
    with pytest.raises(AssertionError):
        run_tool("systemd-analyze", "systemd", "verify", "--man=no", str(wrong), folder=tmp_path)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_restarts_a_worker_unless_that_cannot_help(path: Path) -> None:
    service = unit(path)["Service"]
    assert (service["KillSignal"], service["KillMode"], service["Restart"]) == ("SIGTERM", "mixed", "always")
    assert service["RestartPreventExitStatus"].split() == ["2", "4"]


# Containers ------------------------------------------------------------------------------------------------------


def test_the_image_runs_a_worker_that_is_not_root_and_receives_its_signals() -> None:
    assert instructions()[0].name == "FROM"
    assert instruction("USER").isdecimal()
    assert f"--uid {instruction('USER')} " in " ".join(one.text for one in instructions() if one.name == "RUN")
    assert instruction("CMD").startswith("exec leasemill worker ")
    assert health_check().startswith("leasemill health ")
    for source in instruction("COPY").split()[:-1]:
        assert "*" in source or (ROOT / source).exists(), source


def test_compose_has_a_database_a_migration_and_two_workers_that_wait_for_it() -> None:
    services = compose()["services"]
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert services["worker"]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert services["worker"]["deploy"]["replicas"] == 2
    assert "command" not in services["worker"], "the image's"
    for name in ("migrate", "worker"):
        assert (DEPLOY / services[name]["build"]["context"] / services[name]["build"]["dockerfile"]).is_file()
        assert services[name]["environment"]["LEASEMILL_URL"].startswith("postgresql://leasemill:")
    names = set(services)
    assert all(set(service.get("depends_on", {})) <= names for service in services.values())


def test_the_manifest_is_one_that_kubernetes_would_take() -> None:
    found = manifests()
    assert {kind: one["apiVersion"] for kind, one in found.items()} == {
        "Job": "batch/v1",
        "Deployment": "apps/v1",
        "PodDisruptionBudget": "policy/v1",
    }
    deployment = found["Deployment"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert labels != found["Job"]["spec"]["template"]["metadata"]["labels"], "a job's pod is not a worker's"
    for kind in ("Job", "Deployment"):
        for container in (*pod(kind)["containers"], *pod(kind).get("initContainers", [])):
            assert container["securityContext"]["runAsNonRoot"] is True
            variables = {one["name"]: one["valueFrom"] for one in container["env"]}
            assert variables["LEASEMILL_URL"] == {"secretKeyRef": {"name": "leasemill", "key": "url"}}
            assert variables["POD_NAME"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    (port,) = worker_container()["ports"]
    annotations = deployment["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port["containerPort"])
    assert option(worker_container()["command"], "--metrics") == f"0.0.0.0:{port['containerPort']}"


# Prometheus and Grafana ------------------------------------------------------------------------------------------


def test_prometheus_reads_the_rules_and_they_do_as_they_say() -> None:
    folder = RULES.parent
    assert f"{len(rules())} rules found" in run_tool(
        "promtool", "prometheus", "check", "rules", RULES.name, folder=folder
    )
    assert "SUCCESS" in run_tool("promtool", "prometheus", "test", "rules", RULES_TEST.name, folder=folder)
    run_tool("promtool", "prometheus", "check", "config", "prometheus.yml", folder=folder)


def test_every_alert_is_tested() -> None:
    text = RULES_TEST.read_text()
    assert [rule["alert"] for rule in rules() if rule["alert"] not in text] == []


def test_every_alert_has_a_page_that_says_what_to_do() -> None:
    named: dict[str, list[str]] = {}
    for rule in rules():
        page = ROOT / rule["annotations"]["runbook"]
        assert page.parent == RUNBOOKS
        assert page.is_file(), rule["alert"]
        assert f"`{rule['alert']}`" in page.read_text().split("\n\n")[1], "the page names its alert"
        assert "\n## What to do\n\n1. " in page.read_text()
        named.setdefault(page.name, []).append(rule["alert"])
    without_alert = {"README.md", "disk-full.md"}  # commands report a full disk: no metric has it
    assert {page.name for page in RUNBOOKS.glob("*.md")} - without_alert == set(named)
    index = (RUNBOOKS / "README.md").read_text()
    for name, alerts in named.items():
        assert f"]({name}) | {', '.join(f'`{alert}`' for alert in alerts)} |" in index


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_every_command_that_a_runbook_names_is_one(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasemill.cli.wal.holds_log", lambda _path: True)
    for where, arguments in named_commands(page):
        try:
            parse(main, "leasemill", arguments)
        except click.UsageError as error:
            pytest.fail(f"{where}: {error.format_message()}")


def test_every_query_asks_for_metrics_and_labels_that_there_are() -> None:
    asked: set[str] = set()
    for where, query in queries():
        found = SELECTOR.findall(query)
        assert found, where
        labels: set[str] = set(OUTER_LABELS)
        for name, matchers in found:
            metric = METRICS.get(metric_of(name))
            assert metric is not None, f"{where}: no worker exports {name}"
            assert (name != metric.name) == (metric.type == "histogram"), f"{where}: {name}"
            asked.add(metric.name)
            labels |= set(metric.labels)
            for label, _ in MATCHER.findall(matchers):
                assert label in metric.labels, f"{where}: {name} has no label {label}"
        for grouping in re.findall(r"\bby \(([^)]*)\)", query):
            assert {label.strip() for label in grouping.split(",")} <= labels, where
    assert set(METRICS) - asked == set(), "the dashboard shows all that is exported"


def test_the_dashboard_is_one_that_grafana_can_import() -> None:
    document = dashboard()
    assert {"title", "uid", "schemaVersion", "templating", "panels"} <= set(document)
    panels: list[dict[str, Any]] = document["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, f"{panel['title']} lies above another"
        taken |= cells
        references = [target["refId"] for target in panel.get("targets", [])]
        assert len(set(references)) == len(references)
    variables = {variable["name"] for variable in document["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", str([panel.get("targets") for panel in panels])))
    assert used - {"__rate_interval"} == variables
