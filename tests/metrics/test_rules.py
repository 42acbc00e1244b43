"""Alerts: each fires when it should, none on a healthy day, and each is in the runbook."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.metrics.expressions import DEPLOY, RULES, alerts, rules, selectors
from tests.programs import needs

TESTS = DEPLOY / "prometheus" / "tests"
RUNBOOK = Path(__file__).parents[2] / "docs" / "runbook.md"


def cases(file: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((TESTS / file).read_text())["tests"]
    return found


@needs("promtool", package="prometheus")
@pytest.mark.parametrize("file", [path.name for path in sorted(TESTS.glob("*.yml"))])
def test_the_rules_do_what_their_tests_say(file: str) -> None:
    ended = subprocess.run(
        ["promtool", "test", "rules", file], cwd=TESTS, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr


@needs("promtool", package="prometheus")
def test_rules_and_configuration_are_well_formed() -> None:
    config = DEPLOY / "prometheus" / "prometheus.yml"
    ended = subprocess.run(
        ["promtool", "check", "config", config], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{len(rules())} rules found" in ended.stdout


def test_every_alert_is_seen_firing() -> None:
    expected = [
        sample["labels"]
        for case in cases("alerts.yml")
        for question in case["promql_expr_test"]
        for sample in question["exp_samples"]
    ]
    fired = {name for labels in expected for name in re.findall(r'alertname="(\w+)"', labels)}

    assert fired == {alert["alert"] for alert in alerts()}


def test_the_healthy_day_has_every_metric_the_rules_look_at() -> None:
    [day] = cases("healthy_day.yml")
    names = {one["series"].partition("{")[0] for one in day["input_series"]}
    recorded = {rule["record"] for rule in rules() if "record" in rule}

    for rule in rules():
        for selector in selectors(rule["expr"]):
            assert any(selector.name.accepts(name) for name in names | recorded), rule


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    for alert in alerts():
        assert alert["labels"]["severity"] in ("critical", "warning")
        said = alert["annotations"]
        assert said["summary"], alert
        assert said["description"], alert
        assert said["runbook"] == f"docs/runbook.md#{alert['alert'].lower()}"


def test_alerts_and_sections_of_the_runbook_are_the_same() -> None:
    sections = re.split(r"^## ", RUNBOOK.read_text(), flags=re.MULTILINE)[1:]

    assert [section.split("\n")[0] for section in sections] == [one["alert"] for one in alerts()]
    for section in sections:
        assert all(word in section for word in ("**Means**", "**Look at**", "**Do**")), section


def test_the_runbook_names_only_metrics_there_are() -> None:
    known = (RUNBOOK.parent / "metrics.md").read_text()

    for name in re.findall(r"`(glossa_[a-z_]+)`", RUNBOOK.read_text()):
        assert f"`{name}`" in known, name


def test_the_rules_file_is_the_one_that_is_tested() -> None:
    for path in TESTS.glob("*.yml"):
        named = yaml.safe_load(path.read_text())["rule_files"]
        assert [(path.parent / name).resolve() for name in named] == [RULES.resolve()]
