"""`glossa demo`: two users, one PDF; the first sees it explained, the second has it at once."""

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from glossa.cache.v1 import cache_pb2
from glossa.quota.v1 import quota_pb2
from glossa.registry.v1 import registry_pb2
from rich.console import Console
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table

from services.cli.ask import failed
from services.cli.client import SuiteClient, connected
from services.cli.errors import CommandFailed
from services.cli.sample_pdf import lecture_pdf
from services.cli.show import ProgressView, enum_word, show_stickers
from services.cli.terminal import count, make_console, show_seconds
from services.local.errors import LocalError
from services.local.free_ports import free_ports
from services.local.state import State
from services.local.supervisor import SuitePlan, running_suite
from services.runtime.errors import GlossaError
from services.runtime.tls import tls_in

PAGE = 2
FILENAME = "hash-tables.pdf"
# The demo must neither touch nor need what these point to.
LEFT_OUT = ("DATABASE_URL", "GLOSSA_STORE_URL")


@dataclass(frozen=True, kw_only=True)
class Visit:
    """What one user did and got."""

    user: str
    upload: registry_pb2.UploadDocumentResponse
    answer: cache_pb2.ExplainPageResponse
    stickers: list[cache_pb2.Sticker]
    seconds: float

    @property
    def outcome(self) -> str:
        return enum_word(quota_pb2.Outcome.Name(self.answer.outcome), "OUTCOME_")


async def run_demo() -> None:
    console = make_console()
    console.print(Rule("[bold]Glossa: every page explained once, for everyone[/]"))
    async with _suite(console) as suite:
        await _show(console, suite)


async def _show(console: Console, suite: SuiteClient) -> None:
    nonce = secrets.token_hex(4)
    pdf = lecture_pdf(nonce)
    console.print(f"[dim]document[/] {FILENAME}, made just now, {len(pdf):,} bytes\n")

    console.print("[bold]Ada[/] uploads it and asks about page 2. Nobody has asked before.")
    ada = await _visit(console, suite, f"ada-{nonce}", pdf)
    console.print()
    show_stickers(console, ada.stickers)

    console.print("\n[bold]Ben[/] uploads the same bytes and asks about the same page.")
    ben = await _visit(console, suite, f"ben-{nonce}", pdf)
    same = "the same" if ben.stickers == ada.stickers else "other"
    took = show_seconds(ben.seconds)
    console.print(f"  [green]✓[/] {same} {len(ben.stickers)} stickers, at once [dim]{took}[/]\n")

    generation = await suite.generation(ada.user, ada.answer.generation_id)
    console.print(_receipts([ada, ben]))
    console.print()
    console.print(_savings(ada, ben, generation))


async def _visit(console: Console, suite: SuiteClient, user: str, pdf: bytes) -> Visit:
    began = time.monotonic()
    upload = await suite.upload(user, FILENAME, _once(pdf))
    uploaded_at = time.monotonic()
    held = count(upload.document.reference_count, "reference")
    console.print(
        f"  [green]✓[/] uploaded [dim]{show_seconds(uploaded_at - began)}[/]; "
        f"{held} to the document"
    )
    target = {"file_id": upload.file.file_id}
    answer = await suite.explain(user, target, page=PAGE, locale="en")
    stickers = await _stickers(console, suite, user, answer)
    seconds = time.monotonic() - uploaded_at
    return Visit(user=user, upload=upload, answer=answer, stickers=stickers, seconds=seconds)


async def _stickers(
    console: Console, suite: SuiteClient, user: str, answer: cache_pb2.ExplainPageResponse
) -> list[cache_pb2.Sticker]:
    """What the answer holds already, or what comes at the end of watching."""
    error, stickers = answer.error, list(answer.stickers)
    if answer.status == cache_pb2.GENERATION_STATUS_GENERATING:
        events = suite.watch(user, answer.generation_id)
        last = await ProgressView().follow(console, events)
        error, stickers = last.error, list(last.stickers)
    if error.reason:
        raise failed(error)
    return stickers


def _receipts(visits: list[Visit]) -> Table:
    table = Table("who", "served as", "units paid", "units left", "time to stickers", box=None)
    for visit in visits:
        receipt = visit.answer.receipt
        name = visit.user.partition("-")[0].capitalize()
        table.add_row(
            f"[bold]{name}[/]",
            visit.outcome,
            str(receipt.units),
            str(receipt.remaining_units),
            show_seconds(visit.seconds),
        )
    return table


def _savings(ada: Visit, ben: Visit, generation: cache_pb2.Generation) -> Panel:
    generations = len({ada.answer.generation_id, ben.answer.generation_id})
    references = count(ben.upload.document.reference_count, "reference")
    lines = [
        f"{count(generations, 'generation')} by {generation.model} for 2 people",
        f"{show_seconds(ben.seconds)} instead of {show_seconds(ada.seconds)}: "
        f"{ada.seconds / ben.seconds:.0f} times as fast",
        f"1 stored document, {references} to it",
    ]
    return Panel("\n".join(lines), title="what sharing saved", title_align="left", style="green")


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


@asynccontextmanager
async def _suite(console: Console) -> AsyncIterator[SuiteClient]:
    """The suite that runs already, or one of our own for as long as the demo takes."""
    if not await _is_running():
        async with _own_suite(console) as client:
            yield client
        return
    console.print("[dim]suite[/] the one that is running")
    async with connected() as client:
        yield client


async def _is_running() -> bool:
    """Whether there is a suite that answers and believes our tokens."""
    try:
        async with connected() as client:
            await client.quota("demo")
    except (CommandFailed, LocalError, GlossaError):
        return False
    return True


@asynccontextmanager
async def _own_suite(console: Console) -> AsyncIterator[SuiteClient]:
    folder = Path(tempfile.mkdtemp(prefix="glossa-demo-"))
    environment = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    plan = SuitePlan(
        state=State(folder), ports=free_ports(), environment=environment, tls=tls_in(environment)
    )
    began = time.monotonic()
    try:
        with console.status("starting a suite for the demo") as status:
            async with running_suite(plan, report=console.print) as running:
                status.stop()
                took = show_seconds(time.monotonic() - began)
                console.print(f"[dim]suite[/] started for this demo in {took}")
                addresses = running.plan.ports.addresses()
                async with connected(state=plan.state, addresses=addresses) as client:
                    yield client
    finally:
        shutil.rmtree(folder, ignore_errors=True)
