"""The commands that ask for explanations and documents: upload, explain, convert, watch."""

import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from glossa.cache.v1 import cache_pb2
from glossa.worker.v1.worker_pb2 import WatchGenerationResponse
from rich.console import Console

from services.cli.client import SuiteClient, Target, chunks_of, connected
from services.cli.errors import CommandFailed
from services.cli.show import (
    ProgressView,
    print_json,
    show_receipt,
    show_stickers,
    show_story,
    show_upload,
)
from services.cli.terminal import make_console
from services.runtime.errors import RelayedError

HIGHEST_PAGE = 2**31 - 1  # what the contract can hold


@dataclass(frozen=True, kw_only=True)
class Question:
    """Which page somebody wants explained."""

    user: str
    file: Path | None = None
    file_id: str = ""
    pdf_hash: str = ""
    page: int = 1
    locale: str = "en"

    def check(self) -> None:
        named = [bool(self.file), bool(self.file_id), bool(self.pdf_hash)]
        if sum(named) != 1:
            raise CommandFailed("name the document once: a FILE, --file-id ID or --hash HASH")
        if not 1 <= self.page <= HIGHEST_PAGE:
            raise CommandFailed(f"--page must be from 1 to {HIGHEST_PAGE}, not {self.page}")
        if self.file is not None:
            check_file(self.file)


def check_file(path: Path) -> None:
    """Say what is wrong with a file before anything is sent."""
    if path.is_dir():
        raise CommandFailed(f"{path} is a folder", next_step="give a PDF file")
    with path.open("rb"):
        pass


def check_output(path: Path | None) -> None:
    """Say so before anything is charged if there is no place for it."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        problem = "is a folder" if path.is_dir() else "is in a folder that does not exist"
        raise CommandFailed(f"{path} {problem}", next_step="name another file with --output")


def hand_over(markdown: str, output: Path | None, *, as_json: bool) -> None:
    """Into its file, or for a pipe; whoever reads JSON has it there."""
    if output is not None:
        output.write_text(markdown, encoding="utf-8")
    elif not as_json:
        sys.stdout.write(markdown)


def sent_name(path: Path) -> str:
    """The name of a file as text, which on a disk it need not be."""
    return path.name.encode("utf-8", "replace").decode()


async def run_upload(*, file: Path, user: str, as_json: bool) -> None:
    check_file(file)
    async with connected() as suite:
        answer = await suite.upload(user, sent_name(file), chunks_of(file))
    if as_json:
        print_json("upload", answer)
    else:
        show_upload(make_console(), answer)


async def run_explain(question: Question, *, as_json: bool) -> None:
    question.check()
    async with connected() as suite:
        target = await _target(suite, question, as_json=as_json)
        answer = await suite.explain(
            question.user, target, page=question.page, locale=question.locale
        )
        if as_json:
            print_json("explain", answer)
        stickers = list(answer.stickers)
        if answer.status == cache_pb2.GENERATION_STATUS_GENERATING:
            events = suite.watch(question.user, answer.generation_id)
            stickers = list((await follow(events, as_json=as_json)).stickers)
    if answer.status == cache_pb2.GENERATION_STATUS_FAILED:
        raise failed(answer.error)
    if not as_json:
        console = make_console()
        show_stickers(console, stickers)
        show_receipt(console, answer)


async def run_convert(question: Question, *, output: Path | None, as_json: bool) -> None:
    question.check()
    check_output(output)
    # What is shown beside the document does not end up in it.
    console = make_console(stderr=output is None)
    async with connected() as suite:
        target = await _target(suite, question, as_json=as_json)
        answer = await suite.convert(question.user, target)
        if as_json:
            print_json("convert", answer)
        markdown = answer.markdown
        if answer.status == cache_pb2.GENERATION_STATUS_GENERATING:
            events = suite.watch(question.user, answer.generation_id)
            markdown = (await follow(events, as_json=as_json, console=console)).markdown
    if answer.status == cache_pb2.GENERATION_STATUS_FAILED:
        raise failed(answer.error)
    hand_over(markdown, output, as_json=as_json)
    if not as_json:
        show_receipt(console, answer)


async def run_watch(*, generation_id: str, user: str, as_json: bool) -> None:
    async with connected() as suite:
        last = await follow(suite.watch(user, generation_id), as_json=as_json)
    if as_json:
        return
    if last.markdown:
        sys.stdout.write(last.markdown)
    else:
        show_stickers(make_console(), last.stickers)


async def run_request(*, request_id: str, user: str, as_json: bool) -> None:
    async with connected() as suite:
        story = await suite.request(user, request_id)
    if as_json:
        print_json("request", story)
    else:
        show_story(make_console(), story)


async def follow(
    events: AsyncIterator[WatchGenerationResponse],
    *,
    as_json: bool,
    console: Console | None = None,
) -> WatchGenerationResponse:
    """Show a generation until it ends well; return its last event."""
    last = WatchGenerationResponse()
    if as_json:
        async for last in events:
            print_json("progress", last)
    else:
        last = await ProgressView().follow(console or make_console(), events)
    if last.status == cache_pb2.GENERATION_STATUS_FAILED:
        raise failed(last.error)
    return last


def failed(error: cache_pb2.GenerationError) -> RelayedError:
    message = error.message.rstrip(".")
    return RelayedError(
        f"it did not work out: {message}; what was charged for it comes back",
        code="FAILED_PRECONDITION",
        reason=error.reason,
    )


async def _target(suite: SuiteClient, question: Question, *, as_json: bool) -> Target:
    if question.file_id:
        return {"file_id": question.file_id}
    if question.pdf_hash:
        return {"pdf_hash": question.pdf_hash}
    assert question.file is not None
    name, content = sent_name(question.file), chunks_of(question.file)
    answer = await suite.upload(question.user, name, content)
    if as_json:
        print_json("upload", answer)
    return {"file_id": answer.file.file_id}
