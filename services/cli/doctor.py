"""`glossa doctor`: whether everything is as it must be, for people, machines and Prometheus."""

import asyncio
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from services.cli.errors import CommandFailed
from services.cli.terminal import count, make_console, show_seconds
from services.cli.tokens import parse_lifetime
from services.doctor.bounds import configured_bounds
from services.doctor.metrics import export
from services.doctor.verdict import Check, Kind, Report, Row, Status
from services.doctor.visit import Visit, every_invariant, plan_visit
from services.runtime.metrics import metrics_port

COLOURS = {
    Status.SOUND: "green",
    Status.VIOLATED: "bold red",
    Status.UNKNOWN: "yellow",
    Status.LEFT_OUT: "dim",
}
VALUE_SHOWN = 64


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What was asked for on the command line."""

    grace: str
    since: str
    full: bool
    only: Sequence[str]
    watch: float | None
    metrics_port: int | None
    as_json: bool

    def visit(self) -> Visit:
        bounds = configured_bounds(
            grace=_duration(self.grace), since=None if self.full else parse_lifetime(self.since)
        )
        return plan_visit(bounds, only=self.only)


@contextmanager
def whatever_happens() -> Iterator[None]:
    """An error means that nothing was checked; 1 would mean that something is violated."""
    try:
        yield
    except Exception as error:
        error.exit_code = 2  # type: ignore[attr-defined]
        raise


def list_invariants(*, as_json: bool) -> None:
    """Every promise, and what to do when it is broken."""
    console = make_console()
    for invariant in every_invariant():
        if as_json:
            told = {
                "name": invariant.name,
                "promise": invariant.promise,
                "advice": invariant.advice,
            }
            print(json.dumps({"type": "invariant", **told}))
            continue
        console.print(Text(invariant.name, style="bold"))
        console.print(Padding(Text(invariant.promise), (0, 0, 0, 2)))
        console.print(Padding(Text(f"if not: {invariant.advice}", style="dim"), (0, 0, 1, 2)))


async def run_doctor(wish: Wish) -> int:
    """Look once, or again and again; the exit code of the last look."""
    if wish.metrics_port is not None and wish.watch is None:
        raise CommandFailed(
            "--metrics-port needs somebody who looks again", next_step="add --watch 60"
        )
    visit = wish.visit()
    if wish.watch is None:
        report = await visit.look()
        _print(report, wish.as_json)
        return report.exit_code
    return await _watch(visit, wish)


async def _watch(visit: Visit, wish: Wish) -> int:
    assert wish.watch is not None
    async with AsyncExitStack() as stack:
        if wish.metrics_port is not None:
            host = os.environ.get("GLOSSA_HOST") or "127.0.0.1"
            try:
                port = stack.enter_context(metrics_port(host, wish.metrics_port))
            except OSError as error:
                message = f"cannot listen on {host}:{wish.metrics_port}: {error.strerror}"
                raise CommandFailed(message, next_step="choose another --metrics-port") from None
            print(f"metrics on http://{host}:{port}/metrics", file=sys.stderr, flush=True)
        console = make_console()
        live = None
        if console.is_terminal and not wish.as_json:
            live = stack.enter_context(Live(console=console, auto_refresh=False))
        while True:
            if report := await _look_once(visit):
                export(report)
                if live is not None:
                    live.update(Group(*_brief(report, wish.watch)), refresh=True)
                else:
                    _print(report, wish.as_json)
            await asyncio.sleep(wish.watch)


async def _look_once(visit: Visit) -> Report | None:
    """One look of many: whatever ends it must not end the next."""
    try:
        return await visit.look()
    except Exception as error:
        # The time of the last look stays what it was, and GlossaDoctorNotRun tells.
        print(f"could not look: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return None


def _print(report: Report, as_json: bool) -> None:
    if as_json:
        for line in json_lines(report):
            print(json.dumps(line), flush=True)
        return
    console = make_console()
    for part in _whole(report):
        console.print(part)


def json_lines(report: Report) -> Iterator[dict[str, Any]]:
    """One object for each check, and one for all of them."""
    for check in report.checks:
        yield {
            "type": str(check.kind),
            "name": check.name,
            "status": str(check.status),
            "promise": check.promise,
            "detail": check.detail,
            "advice": "" if check.status is Status.SOUND else check.advice,
            "rows": check.rows,
            "examples": [_plain(row) for row in check.examples],
            "seconds": round(check.seconds, 6),
        }
    yield {
        "type": "summary",
        **{str(status): report.count(status) for status in Status},
        "exit_code": report.exit_code,
        "seconds": round(report.seconds, 6),
        "taken_at": report.taken_at.isoformat(),
    }


def _whole(report: Report) -> Iterator[RenderableType]:
    for heading, checks in _grouped(report.checks):
        yield Text(f"\n{heading}", style="bold")
        yield _table(checks)
    yield from _trouble(report)
    yield _summary(report)


def _brief(report: Report, every: float) -> Iterator[RenderableType]:
    """What fits on a screen that is drawn again and again, the verdict first."""
    yield _summary(report)
    moment = report.taken_at.astimezone().strftime("%H:%M:%S")
    yield Text(f"looked at {moment}, again every {every:g} s; Ctrl-C ends it\n", style="dim")
    table = Table(box=None, pad_edge=False, show_header=False)
    for heading, checks in _grouped(report.checks):
        sound = sum(check.status is Status.SOUND for check in checks)
        table.add_row(heading, f"{sound} of {len(checks)} sound")
    yield table
    yield from _trouble(report)


def _grouped(checks: Iterable[Check]) -> Iterator[tuple[str, list[Check]]]:
    for heading, group in groupby(checks, key=lambda check: check.name.partition("/")[0]):
        yield heading, list(group)


def _table(checks: Sequence[Check]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(min_width=33, overflow="fold")
    table.add_column(ratio=1)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.expand = True
    for check in checks:
        environment = check.kind is Kind.ENVIRONMENT and check.status is Status.SOUND
        table.add_row(
            Text(check.name.partition("/")[2], style=COLOURS[check.status]),
            Text(check.detail if environment else check.promise),
            Text(_found(check), style=COLOURS[check.status]),
            Text(show_seconds(check.seconds), style="dim"),
        )
    return table


def _found(check: Check) -> str:
    if check.status is Status.VIOLATED:
        return count(check.rows, "row") if check.kind is Kind.INVARIANT else "unfit"
    return {Status.SOUND: "sound", Status.UNKNOWN: "unknown"}.get(check.status, "left out")


def _trouble(report: Report) -> Iterator[RenderableType]:
    """Every violation with its first rows; what is unknown for the same reason together."""
    for check in report.checks:
        if check.status is Status.VIOLATED:
            yield Text(f"\n✗ {check.name}: {check.promise}", style="bold red")
            lines = [check.detail] if check.detail else [_shown(row) for row in check.examples]
            if check.rows > len(check.examples):
                lines.append(f"… and {check.rows - len(check.examples)} more")
            lines.append(f"→ {check.advice}")
            yield Padding(Text("\n".join(lines)), (0, 0, 0, 2))
    reasons: dict[tuple[str, str], list[Check]] = {}
    for check in report.checks:
        if check.status in {Status.UNKNOWN, Status.LEFT_OUT}:
            reasons.setdefault((check.detail, check.advice), []).append(check)
    for (detail, advice), checks in reasons.items():
        what = checks[0].name if len(checks) == 1 else count(len(checks), "check")
        yield Text(f"\n? {what}: {detail}", style="yellow")
        if advice:
            yield Padding(Text(f"→ {advice}"), (0, 0, 0, 2))


def _summary(report: Report) -> Text:
    parts = [f"{report.count(Status.SOUND)} sound"]
    if violated := report.count(Status.VIOLATED):
        parts.append(f"{violated} violated")
    if unknown := report.count(Status.UNKNOWN):
        parts.append(f"{unknown} unknown")
    if left_out := report.count(Status.LEFT_OUT):
        parts.append(f"{left_out} left out")
    verdict = {0: "all is well", 1: "not all is well", 2: "not all could be checked"}
    style = {0: "bold green", 1: "bold red", 2: "bold yellow"}[report.exit_code]
    told = ", ".join(parts)
    return Text(
        f"\n{verdict[report.exit_code]}: {told}, in {show_seconds(report.seconds)}", style=style
    )


def _shown(row: Row) -> str:
    return ", ".join(f"{name}={_clipped(str(value))}" for name, value in row.items())


def _clipped(value: str) -> str:
    return value if len(value) <= VALUE_SHOWN else f"{value[:VALUE_SHOWN]}…"


def _plain(row: Row) -> dict[str, Any]:
    """Ids, times and numbers beyond JSON as text."""
    return {
        name: value if value is None or isinstance(value, bool | int | str) else str(value)
        for name, value in row.items()
    }


def _duration(written: str) -> timedelta:
    return timedelta() if written in {"0", "0s"} else parse_lifetime(written)
