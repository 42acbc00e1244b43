"""The commands about what the Registry keeps: files, gc, backfill."""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta

from glossa.registry.v1 import registry_pb2 as pb
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceStub
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from services.cli.errors import CommandFailed, asking
from services.cli.show import print_json
from services.cli.terminal import count, make_console
from services.cli.tokens import MintedToken, parse_lifetime
from services.local.layout import state_dir_from, suite_addresses
from services.local.state import State
from services.runtime.channel import open_channel
from services.runtime.tls import tls_in

CALL_SECONDS = 15.0
COLLECT_SECONDS = 600.0
BACKFILL_SECONDS = 24 * 3600.0
MOST_LISTED = 1000
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


async def run_files(*, user: str, limit: int, as_json: bool) -> None:
    """List a user's files, newest first."""
    if not 1 <= limit <= MOST_LISTED:
        raise CommandFailed(f"--limit must be from 1 to {MOST_LISTED}, not {limit}")
    async with _registry("gateway") as (registry, address):
        request = pb.ListFilesRequest(owner=pb.Owner(user_id=user), page_size=limit)
        with asking("registry", address):
            answer = await registry.ListFiles(request)
    if as_json:
        for file in answer.files:
            print_json("file", file)
    else:
        show_files(make_console(), user, answer)


async def run_gc(*, dry_run: bool, grace: str, as_json: bool) -> None:
    """Remove what nobody refers to."""
    request = pb.CollectGarbageRequest(dry_run=dry_run)
    if grace:
        at_once = grace in {"0", "0s"}
        request.grace.FromTimedelta(timedelta() if at_once else parse_lifetime(grace))
    async with _registry("admin") as (registry, address):
        with asking("registry", address):
            answer = await registry.CollectGarbage(request, timeout=COLLECT_SECONDS)
    if as_json:
        print_json("gc", answer)
    else:
        show_collected(make_console(), answer, dry_run=dry_run)


async def run_backfill(*, retry_failed: bool, as_json: bool) -> None:
    """Hash files that are known without a hash, and show how it goes."""
    request = pb.BackfillContentHashesRequest(retry_failed=retry_failed)
    last = pb.BackfillContentHashesResponse()
    async with _registry("admin") as (registry, address):
        call = registry.BackfillContentHashes(request, timeout=BACKFILL_SECONDS)
        with asking("registry", address), _bar(shown=not as_json) as bar:
            async for last in call:
                if as_json:
                    print_json("backfill", last)
                bar.update(
                    bar.task_ids[0],
                    total=last.total,
                    completed=last.hashed + last.failed + last.skipped,
                )
    if not as_json:
        show_backfilled(make_console(), last)


def show_files(console: Console, user: str, answer: pb.ListFilesResponse) -> None:
    if not answer.files:
        console.print(Text(f"{user} has no files"))
        return
    table = Table("file", "name", "size", "uploaded", box=None, pad_edge=False)
    for file in answer.files:
        uploaded = file.created_at.ToDatetime().strftime("%Y-%m-%d %H:%M")
        # A name is somebody else's words: shown as it is, not as markup.
        table.add_row(file.file_id, Text(file.filename), show_bytes(file.size_bytes), uploaded)
    console.print(table)
    if answer.next_page_token:
        console.print("[dim]and older ones; --limit shows more[/]")


def show_collected(console: Console, answer: pb.CollectGarbageResponse, *, dry_run: bool) -> None:
    done = "would remove" if dry_run else "removed"
    console.print(
        f"{done} {count(answer.documents, 'document')} ({show_bytes(answer.freed_bytes)}) "
        f"and {count(answer.orphan_objects, 'orphan object')}"
    )
    if answer.failed:
        failed = count(answer.failed, "document")
        console.print(f"[yellow]{failed} could not be removed now; the next run tries again[/]")


def show_backfilled(console: Console, last: pb.BackfillContentHashesResponse) -> None:
    if not last.total:
        console.print("every file has its hash")
        return
    console.print(f"{count(last.hashed, 'file')} hashed")
    if last.failed:
        failed = count(last.failed, "file")
        console.print(
            f"[yellow]{failed} could not be hashed: bytes missing, or no PDF; "
            "--retry-failed tries again[/]"
        )


def show_bytes(number: int) -> str:
    for size, unit in UNITS:
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"


@contextlib.contextmanager
def _bar(*, shown: bool) -> Iterator[Progress]:
    columns = (TextColumn("hashing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = make_console()
    with Progress(*columns, console=console, disable=not shown or not console.is_terminal) as bar:
        bar.add_task("hashing", total=None)
        yield bar


@asynccontextmanager
async def _registry(scope: str) -> AsyncIterator[tuple[RegistryServiceStub, str]]:
    token = MintedToken(State(state_dir_from(os.environ)).signer(), scope)
    address = suite_addresses()["registry"]
    tls = tls_in(os.environ)
    async with open_channel(address, token, tls=tls, deadline_seconds=CALL_SECONDS) as channel:
        yield RegistryServiceStub(channel), address
