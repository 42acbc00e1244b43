"""What the expressions of rules and dashboard ask for: metrics, labels, and values of labels."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
DASHBOARD = DEPLOY / "grafana" / "glossa.json"

# A selector: a name with or without matchers, or matchers alone.
SELECTOR = re.compile(
    r"\b((?:glossa[_:]|process_|ALERTS\b|up\b)[\w:]*)(?:\{([^}]*)\})?|\{([^}]*)\}"
)
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\bby \(([^)]*)\)")


@dataclass(frozen=True)
class Matcher:
    label: str
    operator: str
    value: str

    def accepts(self, value: str) -> bool:
        same = (
            re.fullmatch(self.value, value) is not None
            if "~" in self.operator
            else value == self.value
        )
        return same != self.operator.startswith("!")


@dataclass(frozen=True)
class Selector:
    """One metric, or those whose name a pattern matches, and how its series are chosen."""

    name: Matcher
    matchers: tuple[Matcher, ...]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def expressions() -> Iterator[tuple[str, str]]:
    """Where each comes from, and the expression as Prometheus gets it."""
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m")


def selectors(expression: str) -> Iterator[Selector]:
    for name, with_name, alone in SELECTOR.findall(expression):
        matchers = [Matcher(*found) for found in MATCHER.findall(with_name or alone)]
        named = [one for one in matchers if one.label == "__name__"]
        rest = tuple(one for one in matchers if one.label != "__name__")
        yield Selector(named[0] if named else Matcher("__name__", "=", name), rest)


def groupings(expression: str) -> set[str]:
    """Labels by which it sums up."""
    lists = GROUPING.findall(expression)
    return {label.strip() for names in lists for label in names.split(",")}
