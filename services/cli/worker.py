"""The commands about what the Worker keeps: dead letters and metrics."""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from glossa.worker.v1 import worker_pb2 as pb
from glossa.worker.v1.worker_pb2_grpc import WorkerServiceStub
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from services.cli.accounts import HASH_SHOWN, dollars
from services.cli.errors import CommandFailed, asking
from services.cli.show import enum_word, moment, print_json
from services.cli.terminal import count, make_console, show_seconds
from services.cli.tokens import MintedToken, parse_lifetime
from services.local.layout import state_dir_from, suite_addresses
from services.local.state import State
from services.runtime.channel import open_channel
from services.runtime.tls import tls_in

CALL_SECONDS = 15.0
REDRIVE_SECONDS = 3600.0
MOST_LISTED = 500
SPARKS = "▁▂▃▄▅▆▇█"
BAR_WIDTH = 12
DOCUMENTS_SHOWN = 10
REASON_SHOWN = 18
HOURS = 24


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which dead letters somebody means."""

    generation_ids: Sequence[str] = ()
    reason: str = ""
    pdf_hash: str = ""
    kind: str = ""
    locale: str = ""
    model: str = ""
    since: str = ""

    def message(self) -> pb.DeadLetterFilter:
        chosen = pb.DeadLetterFilter(
            generation_ids=self.generation_ids,
            reason=self.reason,
            pdf_hash=self.pdf_hash,
            kind=self.kind,
            locale=self.locale,
            model=self.model,
        )
        if self.since:
            chosen.begins_at.FromDatetime(datetime.now(UTC) - parse_lifetime(self.since))
        return chosen


async def run_list(choice: Choice, *, limit: int, redriven: bool, as_json: bool) -> None:
    """What failed, newest first."""
    if not 1 <= limit <= MOST_LISTED:
        raise CommandFailed(f"--limit must be from 1 to {MOST_LISTED}, not {limit}")
    request = pb.ListDeadLettersRequest(
        filter=choice.message(), page_size=limit, include_redriven=redriven
    )
    async with _worker() as (worker, address):
        with asking("worker", address):
            answer = await worker.ListDeadLetters(request)
    if as_json:
        for letter in answer.dead_letters:
            print_json("dead_letter", letter)
    else:
        show_letters(make_console(), answer)


async def run_show(generation_id: str, *, as_json: bool) -> None:
    """One of them, with every attempt."""
    request = pb.GetDeadLetterRequest(generation_id=generation_id)
    async with _worker() as (worker, address):
        with asking("worker", address):
            letter = (await worker.GetDeadLetter(request)).dead_letter
    if as_json:
        print_json("dead_letter", letter)
    else:
        show_letter(make_console(), letter)


async def run_redrive(choice: Choice, *, everything: bool, dry_run: bool, as_json: bool) -> None:
    """Start what failed anew, and show how it goes."""
    if choice == Choice() and not everything:
        raise CommandFailed(
            "say which: generation ids, --reason, --hash, --model, --since or --all"
        )
    request = pb.RedriveDeadLettersRequest(filter=choice.message(), all=everything, dry_run=dry_run)
    first = last = pb.RedriveDeadLettersResponse()
    async with _worker() as (worker, address):
        call = worker.RedriveDeadLetters(request, timeout=REDRIVE_SECONDS)
        try:
            with asking("worker", address), _bar(shown=not as_json and not dry_run) as bar:
                async for last in call:
                    first = last if last.reasons else first
                    if as_json:
                        print_json("redrive", last)
                    bar.update(bar.task_ids[0], total=last.total, completed=_done(last))
        except Exception:
            # What was started goes on; the error says why the rest was not.
            if not as_json and _done(last):
                show_redriven(make_console(), first, last, dry_run=dry_run)
            raise
    if not as_json:
        show_redriven(make_console(), first, last, dry_run=dry_run)


async def run_metrics(*, day: str, as_json: bool) -> None:
    """One day in numbers."""
    if day == "today":
        day = datetime.now(UTC).date().isoformat()
    async with _worker() as (worker, address):
        with asking("worker", address):
            summary = await worker.GetDailySummary(pb.GetDailySummaryRequest(day=day))
    if as_json:
        print_json("metrics", summary)
    else:
        show_metrics(make_console(), summary)


def show_letters(console: Console, answer: pb.ListDeadLettersResponse) -> None:
    if not answer.dead_letters:
        console.print("nothing has failed")
        return
    table = Table("generation", "failed", "page", "why", "tries", "cost", box=None)
    table.padding = (0, 1, 0, 0)
    for column in table.columns[4:]:
        column.justify = "right"
    for letter in answer.dead_letters:
        style = "dim" if letter.redriven_as else ""
        table.add_row(
            letter.generation_id,
            letter.failed_at.ToDatetime().strftime("%m-%d %H:%M"),
            f"{letter.pdf_hash[:6]} p. {letter.page}",
            # What is cut off of an id or a sum is missed; a reason can be guessed.
            Text(letter.error.reason[:REASON_SHOWN]),
            str(letter.attempts),
            dollars(letter.cost_nanodollars),
            style=style,
        )
    console.print(table)
    shown = len(answer.dead_letters)
    more = f", {shown} shown; --limit shows more" if answer.total > shown else ""
    console.print(Text(f"{count(answer.total, 'dead letter')}{more}", style="dim"))


def show_letter(console: Console, letter: pb.DeadLetter) -> None:
    console.print(Text(f"{letter.error.reason}: {letter.error.message}", style="bold"))
    facts = {
        "generation": letter.generation_id,
        "document": letter.pdf_hash,
        "page": f"{letter.page}, {letter.locale}",
        "made with": f"{letter.model}, prompts {letter.prompt_version}",
        "failed": moment(letter.failed_at),
        "tries": f"{letter.attempts}{' (trying again cannot help)' if letter.permanent else ''}",
        "cost": dollars(letter.cost_nanodollars),
    }
    if letter.redriven_as:
        facts["redriven"] = f"{moment(letter.redriven_at)} as {letter.redriven_as}"
    for name, value in facts.items():
        console.print(Text.assemble((f"{name:<11}", "dim"), value), soft_wrap=True)
    for failure in letter.failures:
        line = f"  {moment(failure.failed_at)}  attempt {failure.attempt}: {failure.reason}"
        console.print(Text(f"{line}, {failure.message}".rstrip(", ")))


def show_redriven(
    console: Console,
    first: pb.RedriveDeadLettersResponse,
    last: pb.RedriveDeadLettersResponse,
    *,
    dry_run: bool,
) -> None:
    if not last.total:
        console.print("nothing to redrive")
        return
    if dry_run:
        console.print(f"would redrive {count(last.total, 'dead letter')}")
    else:
        console.print(f"redrove {last.started} of {count(last.total, 'dead letter')}")
    most = max((one.count for one in first.reasons), default=1)
    for reason in first.reasons:
        console.print(Text(f"  {_bar_of(reason.count, most)} {reason.count:>6} {reason.reason}"))
    if last.already_live:
        console.print(f"{count(last.already_live, 'page')} had been asked for again since")
    if last.gone:
        console.print(f"[yellow]{last.gone} were forgotten by the Cache[/]")


def show_metrics(console: Console, summary: pb.GetDailySummaryResponse) -> None:
    total = summary.total
    requests, until = _requests(total), summary.complete_until.ToDatetime()
    console.print(
        Text(f"{summary.day}  {count(requests, 'request')}, {_share(total)} from the cache", "bold")
    )
    failed = (
        f"{count(total.failures, 'failure')}, {count(summary.open_dead_letters, 'dead letter')}"
    )
    console.print(Text(f"{failed}; counted until {until:%Y-%m-%d %H:%M} UTC", style="dim"))
    if not requests + total.failures:
        console.print("nothing has been counted for this day; hours are added as they end")
        return
    hours = {hour.hour: _requests(hour.metrics) for hour in summary.hours}
    slow = {hour.hour: hour.metrics.generation.p95_ms for hour in summary.hours}
    console.print(f"requests  {sparkline([hours.get(hour, 0) for hour in range(HOURS)])}  by hour")
    console.print(f"p95       {sparkline([slow.get(hour, 0) for hour in range(HOURS)])}  made anew")
    console.print(_parts_table("", [("all", total)]))
    for name, parts in (("mode", summary.modes), ("language", summary.locales)):
        console.print(_parts_table(name, [(_name(part.name), part.metrics) for part in parts]))
    documents = [
        (part.name[:HASH_SHOWN], part.metrics) for part in summary.documents[:DOCUMENTS_SHOWN]
    ]
    console.print(_parts_table("document", documents))
    most = max((one.count for one in summary.failures), default=1)
    for failure in summary.failures:
        console.print(Text(f"{_bar_of(failure.count, most)} {failure.count:>6} {failure.reason}"))


def sparkline(values: Sequence[int]) -> str:
    """One character for each; the lowest line only for nothing at all."""
    most = max(values, default=0)
    steps = len(SPARKS) - 1
    return "".join(SPARKS[-(-value * steps // most) if most else 0] for value in values)


def _parts_table(first: str, parts: Sequence[tuple[str, pb.Metrics]]) -> Table:
    table = Table(first, "requests", "from cache", "", box=None, pad_edge=False)
    for name in ("hit p50", "p95", "made p50", "p95", "p99"):
        table.add_column(name, justify="right")
    table.columns[1].justify = table.columns[2].justify = "right"
    for name, metrics in parts:
        hit, made = metrics.hit, metrics.generation
        table.add_row(
            name,
            f"{_requests(metrics):,}",
            _share(metrics),
            _bar_of(metrics.cache_hits, max(1, _requests(metrics))),
            *(_took(ms) for ms in (hit.p50_ms, hit.p95_ms)),
            *(_took(ms) for ms in (made.p50_ms, made.p95_ms, made.p99_ms)),
        )
    return table


def _requests(metrics: pb.Metrics) -> int:
    return metrics.cache_hits + metrics.cache_misses + metrics.joins


def _share(metrics: pb.Metrics) -> str:
    requests = _requests(metrics)
    return f"{100 * metrics.cache_hits / requests:.0f} %" if requests else "-"


def _took(milliseconds: int) -> str:
    return show_seconds(milliseconds / 1000) if milliseconds else "-"


def _name(name: str) -> str:
    return enum_word(name, "") if "_" in name else name


def _bar_of(value: int, most: int) -> str:
    filled = -(-value * BAR_WIDTH // most)
    return "█" * filled + "░" * (BAR_WIDTH - filled)


def _done(progress: pb.RedriveDeadLettersResponse) -> int:
    return progress.started + progress.already_live + progress.gone


@contextlib.contextmanager
def _bar(*, shown: bool) -> Iterator[Progress]:
    columns = (TextColumn("redriving"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = make_console()
    with Progress(*columns, console=console, disable=not shown or not console.is_terminal) as bar:
        bar.add_task("redriving", total=None)
        yield bar


@asynccontextmanager
async def _worker() -> AsyncIterator[tuple[WorkerServiceStub, str]]:
    token = MintedToken(State(state_dir_from(os.environ)).signer(), "admin")
    address = suite_addresses()["worker"]
    tls = tls_in(os.environ)
    async with open_channel(address, token, tls=tls, deadline_seconds=CALL_SECONDS) as channel:
        yield WorkerServiceStub(channel), address
