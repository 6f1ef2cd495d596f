"""The files of `deploy/`, read as their programs read them."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from tests.docs.pages import ROOT, calls

DEPLOY: Final = ROOT / "deploy"
UNITS: Final = sorted(DEPLOY.glob("systemd/*.service"))
RULES: Final = DEPLOY / "prometheus" / "alerts.yml"
RULES_TEST: Final = DEPLOY / "prometheus" / "alerts_test.yml"
DASHBOARD: Final = DEPLOY / "grafana" / "leasemill.json"


class Instruction(NamedTuple):
    """Of a Dockerfile: `RUN`, and what follows."""

    name: str
    text: str


def instructions() -> list[Instruction]:
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def instruction(name: str) -> str:
    """The text of the only one of this name."""
    (found,) = [one.text for one in instructions() if one.name == name]
    return found


def health_check() -> str:
    return instruction("HEALTHCHECK").partition("CMD ")[2]


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return document


def manifests() -> dict[str, dict[str, Any]]:
    """What the manifest for Kubernetes makes, by kind."""
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    assert len({document["kind"] for document in documents}) == len(documents)
    return {document["kind"]: document for document in documents}


def pod(kind: str) -> dict[str, Any]:
    spec: dict[str, Any] = manifests()[kind]["spec"]["template"]["spec"]
    return spec


def worker_container() -> dict[str, Any]:
    (container,) = pod("Deployment")["containers"]
    found: dict[str, Any] = container
    return found


def unit(path: Path) -> configparser.ConfigParser:
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(path.read_text())
    return found


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return document


def queries() -> Iterator[tuple[str, str]]:
    """Every query of the alerts and of the dashboard, with where it is."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def values_asked_for(query: str) -> Iterator[tuple[str, str, list[str]]]:
    """Each series, label and the values that a query selects by it; variables of the dashboard are left out."""
    for name, matchers in re.findall(r"\b(leasemill_\w+)\{([^}]*)\}", query):
        for label, values in re.findall(r'(\w+)=~?"([^"$]*)"', matchers):
            yield name, label, values.split("|")


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Every call of `leasemill` in the files, with where it is."""
    for text in (instruction("CMD"), health_check()):
        yield from (("Dockerfile", call) for call in calls(text))
    for name, service in compose()["services"].items():
        if "command" in service:
            yield from ((f"compose.yaml: {name}", call) for call in calls(shlex.join(service["command"])))
    for kind in ("Job", "Deployment"):
        for container in (*pod(kind)["containers"], *pod(kind).get("initContainers", [])):
            probes = [probe["exec"]["command"] for name, probe in container.items() if name.endswith("Probe")]
            for command in (container["command"], *probes):
                text = command[2] if command[:2] == ["sh", "-c"] else shlex.join(command)
                yield from ((f"kubernetes.yaml: {container['name']}", call) for call in calls(text))
    for path in UNITS:
        yield from ((path.name, call) for call in calls(unit(path)["Service"]["ExecStart"]))


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def seconds(text: str) -> int:
    match = re.fullmatch(r"(\d+)s?", text)
    assert match is not None, text
    return int(match[1])
