"""A real Prometheus scrapes a real suite: all is up, all is asked rightly, and no alert fires."""

import asyncio
import json
import re
import socket
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.local.layout import SERVICES
from tests.metrics.conftest import Metered, read, samples
from tests.metrics.expressions import (
    DEPLOY,
    RULES,
    Matcher,
    expressions,
    groupings,
    rules,
    selectors,
)
from tests.programs import needs

CONFIG = DEPLOY / "prometheus" / "prometheus.yml"
METRICS_PAGE = DEPLOY.parent / "docs" / "metrics.md"
SECONDS = 60
# What Prometheus adds by itself.
TARGET_LABELS = {"service": set(SERVICES), "job": {"glossa", "glossa-doctor"}, "instance": {""}}
FOREIGN: dict[str, dict[str, set[str]]] = {
    "up": {},
    "ALERTS": {"alertname": set(), "alertstate": {"firing"}},
}

Labels = dict[str, set[str]]


@dataclass(frozen=True)
class Prometheus:
    url: str

    async def ask(self, path: str, **question: str) -> Any:
        query = urllib.parse.urlencode(question)
        return json.loads(await read(f"{self.url}/api/v1/{path}?{query}"))["data"]

    async def value(self, query: str) -> float | None:
        found = (await self.ask("query", query=query))["result"]
        return float(found[0]["value"][1]) if found else None


@asynccontextmanager
async def prometheus(metered: Metered, folder: Path) -> AsyncIterator[Prometheus]:
    """Our configuration, but for ports and patience."""
    config = yaml.safe_load(CONFIG.read_text())
    config["global"] |= {"scrape_interval": "1s", "scrape_timeout": "1s"}
    config["global"]["evaluation_interval"] = "1s"
    config["rule_files"] = [str(CONFIG.parent / name) for name in config["rule_files"]]
    for job in config["scrape_configs"]:
        for static in job["static_configs"]:
            static["targets"] = [metered.targets[static["labels"]["service"]]]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield Prometheus(f"http://{address}")
    finally:
        process.terminate()
        await process.wait()


async def until(question: str, server: Prometheus, expected: float) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                if await server.value(question) == expected:
                    return
            except OSError:  # not up yet
                pass
            await asyncio.sleep(0.2)


@needs("prometheus", package="prometheus")
async def test_a_real_prometheus_finds_all_well(metered: Metered, tmp_path: Path) -> None:
    await metered.explain_and_wait("alice")
    async with prometheus(metered, tmp_path) as server:
        await until('sum(up{job="glossa"})', server, len(SERVICES))
        await until('sum(up{job="glossa-doctor"})', server, 1)
        await until("sum(glossa_cache_answers_total)", server, 1)
        await until('sum(glossa_worker_attempts_total{result="ready"})', server, 1)
        await until("count(glossa:user_calls:failed_ratio_5m) + 0", server, 1)

        groups = (await server.ask("rules"))["groups"]
        told = [rule for group in groups for rule in group["rules"]]
        assert len(told) == len(rules())
        assert {rule["health"] for rule in told} == {"ok"}, told
        firing = [rule["name"] for rule in told if rule.get("state") == "firing"]
        assert firing == []
        for title, expression in expressions():
            answer = await server.ask("query", query=expression)
            assert answer["resultType"] == "vector", title


@needs("promtool", package="prometheus")
async def test_promtool_finds_nothing_to_say_about_any_service(metered: Metered) -> None:
    for service, page in (await metered.pages()).items():
        process = await asyncio.create_subprocess_exec(
            "promtool",
            "check",
            "metrics",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        # The parsers of both worlds agree on what a page of metrics is.
        said, _ = await process.communicate(page.encode())
        assert (process.returncode, said.decode()) == (0, ""), service


async def test_every_expression_asks_for_what_is_exported(metered: Metered) -> None:
    exported = await exported_labels(metered)

    assert not_exported(exported, list(expressions())) == []


@pytest.mark.parametrize(
    "expression",
    [
        "sum(glossa_cache_no_such_total)",
        'glossa_cache_queue_jobs{lane="express"}',
        "sum by (user) (glossa_cache_queue_jobs)",
        'sum(rate({__name__=~"glossa_(cache|registry)_calls_total"}[5m]))',
        'glossa_cache_queue_jobs{tenant=~"a|b"}',
    ],
)
async def test_a_wrong_expression_is_found(metered: Metered, expression: str) -> None:
    assert not_exported(await exported_labels(metered), [("wrong", expression)]) != []


async def test_the_page_of_metrics_names_what_is_exported(metered: Metered) -> None:
    documented = set(re.findall(r"^\| `(\w+)` \|", METRICS_PAGE.read_text(), re.MULTILINE))
    suffix = re.compile(r"_(bucket|sum|count)$")
    exported = {
        name if name in documented else suffix.sub("", name)
        for page in (await metered.pages()).values()
        for name in (sample.name for sample in samples(page))
        if name.startswith("glossa_") and not name.startswith("glossa_doctor_")
    }

    assert exported == documented


async def exported_labels(metered: Metered) -> dict[str, Labels]:
    """For each metric its labels, and the values each has somewhere."""
    exported: dict[str, Labels] = {name: dict(labels) for name, labels in FOREIGN.items()}
    for rule in rules():
        if "record" in rule:
            exported[rule["record"]] = {}
    for name, labels in await metered.series():
        of_metric = exported.setdefault(name, {})
        for label, value in labels:
            of_metric.setdefault(label, set()).add(value)
    return exported


def not_exported(
    exported: Mapping[str, Labels], asked: list[tuple[str, str]]
) -> list[tuple[str, str, object]]:
    """Metrics, labels and values that nothing exports, and where they are asked for."""
    wrong: list[tuple[str, str, object]] = []
    for title, expression in asked:
        known: set[str] = {"le", *TARGET_LABELS}
        for selector in selectors(expression):
            found = [name for name in exported if selector.name.accepts(name)]
            if not found:
                wrong.append((title, expression, selector.name))
            for name in found:
                labels = {**TARGET_LABELS, **exported[name]}
                known |= set(labels)
                wrong += [
                    (title, name, matcher)
                    for matcher in selector.matchers
                    if not has(labels, matcher)
                ]
        wrong += [(title, expression, label) for label in groupings(expression) - known]
    return wrong


def has(labels: Labels, matcher: Matcher) -> bool:
    """Whether the label is there, and some series has a value that is asked for."""
    values = labels.get(matcher.label)
    return values is not None and any(matcher.accepts(value) for value in values)


def test_the_rules_are_those_that_prometheus_loads() -> None:
    config = yaml.safe_load(CONFIG.read_text())

    assert [(CONFIG.parent / name).resolve() for name in config["rule_files"]] == [RULES.resolve()]
