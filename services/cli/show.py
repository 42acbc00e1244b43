"""How answers look: JSON lines for machines; panels, tables and live progress for people."""

import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Collection

from glossa.cache.v1 import cache_pb2
from glossa.quota.v1 import quota_pb2
from glossa.registry.v1 import registry_pb2
from glossa.worker.v1 import worker_pb2
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from services.cli.terminal import count, show_seconds

STAGES = {
    cache_pb2.STAGE_QUEUED: "waiting for a worker",
    cache_pb2.STAGE_READING: "reading",
    cache_pb2.STAGE_ANALYSING_IMAGES: "looking at the images",
    cache_pb2.STAGE_EXPLAINING: "explaining",
    cache_pb2.STAGE_RETRYING: "an attempt failed, waiting for the next",
    cache_pb2.STAGE_READY: "ready",
    cache_pb2.STAGE_FAILED: "failed",
}
COLOURS = {
    cache_pb2.STICKER_KIND_SUMMARY: "cyan",
    cache_pb2.STICKER_KIND_TERM: "green",
    cache_pb2.STICKER_KIND_CONCEPT: "yellow",
    cache_pb2.STICKER_KIND_FORMULA: "magenta",
    cache_pb2.STICKER_KIND_FIGURE: "blue",
    cache_pb2.STICKER_KIND_EXAMPLE: "bright_red",
}
COUNTED = frozenset(
    {cache_pb2.STAGE_READING, cache_pb2.STAGE_ANALYSING_IMAGES, cache_pb2.STAGE_EXPLAINING}
)
ENDED = frozenset({cache_pb2.STAGE_READY, cache_pb2.STAGE_FAILED})


def print_json(kind: str, message: Message) -> None:
    """One line: the message as protobuf's JSON, and what it is."""
    fields = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    # Escaped where the terminal could not hold it: machines must get every character.
    escaped = sys.stdout.encoding.lower() != "utf-8"
    print(json.dumps({"type": kind, **fields}, ensure_ascii=escaped), flush=True)


class ProgressView:
    """The stages of a generation as they come, each with the time it took."""

    def __init__(self) -> None:
        self._stages: list[cache_pb2.Stage.ValueType] = []
        self._began: list[float] = []
        self._details: list[str] = []
        self._spinner = Spinner("dots", style="cyan")

    async def follow(
        self, console: Console, events: AsyncIterator[worker_pb2.WatchGenerationResponse]
    ) -> worker_pb2.WatchGenerationResponse:
        """Show every event as it comes and return the last."""
        last = worker_pb2.WatchGenerationResponse()
        # A pipe cannot be drawn over: it gets the finished list once.
        live = Live(self, console=console, refresh_per_second=12) if console.is_terminal else None
        with live or contextlib.nullcontext():
            async for last in events:
                self.update(last)
        if live is None:
            console.print(self)
        return last

    def update(self, event: worker_pb2.WatchGenerationResponse) -> None:
        if not self._stages or self._stages[-1] != event.stage:
            self._stages.append(event.stage)
            self._began.append(time.monotonic())
            self._details.append("")
        self._details[-1] = _detail(event)

    def __rich__(self) -> RenderableType:
        table = Table.grid(padding=(0, 1))
        for index, stage in enumerate(self._stages):
            is_current = index == len(self._stages) - 1 and stage not in ENDED
            mark: RenderableType = self._spinner if is_current else _mark(stage)
            label = f"{STAGES.get(stage, 'under way')} {self._details[index]}".rstrip()
            table.add_row(" ", mark, label, Text(self._took(index), style="dim", justify="right"))
        return table

    def _took(self, index: int) -> str:
        if self._stages[index] in ENDED:
            return ""
        following = self._began[index + 1 : index + 2] or [time.monotonic()]
        return show_seconds(following[0] - self._began[index])


def show_stickers(console: Console, stickers: Collection[cache_pb2.Sticker]) -> None:
    if not stickers:
        console.print("there was nothing to explain on this page")
    for sticker in stickers:
        console.print(_panel(sticker))


def show_receipt(
    console: Console, answer: cache_pb2.ExplainPageResponse | cache_pb2.ConvertDocumentResponse
) -> None:
    outcome = enum_word(quota_pb2.Outcome.Name(answer.outcome), "OUTCOME_")
    receipt = answer.receipt
    console.print(
        f"[bold]{outcome}[/], {count(receipt.units, 'unit')} charged, "
        f"{receipt.remaining_units} left"
    )
    # A line each, so that a narrow window breaks none of them.
    for name in ("model", "generation_id", "request_id"):
        line = f"{name.removesuffix('_id'):<11}{getattr(answer, name)}"
        console.print(Text(line, style="dim"), soft_wrap=True)
    for limit in answer.limits:
        if limit.warning:
            console.print(Text(_warning(limit), style="yellow"))


def show_story(console: Console, story: cache_pb2.DescribeRequestResponse) -> None:
    state = enum_word(cache_pb2.RequestState.Name(story.state), "REQUEST_STATE_")
    wanted = "all" if story.kind == "document_markdown" else f"page {story.page}"
    title = f"{state}, {count(story.units, 'unit')}, {wanted} of {story.pdf_hash[:12]}…"
    console.print(Text(title, style="bold"))
    for sentence in story.story:
        console.print(Text(f"  {sentence}"))
    clocks = Table.grid(padding=(0, 2))
    for name in ("run_after", "queue_deadline_at", "leased_until", "deadline_at"):
        if story.clocks.HasField(name):
            words = enum_word(name, "").removesuffix(" at")
            clocks.add_row(Text(words, style="dim"), moment(getattr(story.clocks, name)))
    if clocks.row_count:
        console.print(clocks)


def show_upload(console: Console, answer: registry_pb2.UploadDocumentResponse) -> None:
    note = enum_word(registry_pb2.UploadNote.Name(answer.note), "UPLOAD_NOTE_")
    pages = count(answer.document.total_pages, "page")
    console.print(Text(f"{answer.file.filename}: {note}, {pages}"))
    console.print(f"[dim]file[/] {answer.file.file_id}")
    console.print(f"[dim]hash[/] {answer.file.pdf_hash}", soft_wrap=True)


def show_quota(console: Console, user: str, status: quota_pb2.GetQuotaStatusResponse) -> None:
    if status.degraded:
        console.print("the database does not answer: paid work is refused until it does")
        return
    ends = moment(status.period_ends_at) if status.HasField("period_ends_at") else "never"
    console.print(f"[bold]{user}[/] has {status.remaining_units} units left; period ends {ends}")
    table = Table("window", "limit", "used", "remaining", "resets", box=None, pad_edge=False)
    for tier in status.tiers:
        resets = moment(tier.resets_at) if tier.HasField("resets_at") else "-"
        table.add_row(tier.tier, str(tier.limit), str(tier.used), str(tier.remaining), resets)
    console.print(table)


def enum_word(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower().replace("_", " ")


def _panel(sticker: cache_pb2.Sticker) -> Panel:
    colour = COLOURS.get(sticker.kind, "white")
    kind = enum_word(cache_pb2.StickerKind.Name(sticker.kind), "STICKER_KIND_")
    body = Table.grid()
    body.add_row(Markdown(sticker.body_markdown))
    if sticker.anchor.quote:
        quote = " ".join(sticker.anchor.quote.split())
        body.add_row(Text(f"“{quote}”", style="dim italic", overflow="ellipsis", no_wrap=True))
    title = Text.assemble((f" {kind} ", f"reverse {colour}"), f" {sticker.title} ", style="bold")
    return Panel(body, title=title, title_align="left", border_style=colour)


def _detail(event: worker_pb2.WatchGenerationResponse) -> str:
    if event.stage == cache_pb2.STAGE_QUEUED and event.queue_position:
        return f"(number {event.queue_position} in the queue)"
    if event.total > 1 and event.stage in COUNTED:
        return f"{event.done}/{event.total}"
    return event.error.message if event.stage == cache_pb2.STAGE_FAILED else ""


def _mark(stage: "cache_pb2.Stage.ValueType") -> Text:
    failed = stage in {cache_pb2.STAGE_FAILED, cache_pb2.STAGE_RETRYING}
    return Text("✗", style="red") if failed else Text("✓", style="green")


def _warning(limit: quota_pb2.Limit) -> str:
    line = f"slow down: {limit.remaining} of {limit.limit} requests left in the {limit.tier} window"
    if not limit.HasField("resets_at"):
        return line
    return f"{line} until {limit.resets_at.ToDatetime():%H:%M:%S} UTC"


def moment(timestamp: Timestamp) -> str:
    return timestamp.ToDatetime().strftime("%Y-%m-%d %H:%M:%S UTC")
