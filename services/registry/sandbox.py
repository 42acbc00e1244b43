"""A pool of confined processes that open PDFs; a bad PDF costs one of them, not the service."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from services.registry import metrics
from services.registry.domain import PageContent
from services.registry.errors import (
    PdfError,
    PdfReaderLost,
    PdfStalled,
    PdfTimeout,
    PdfTooComplex,
    PdfUnreadable,
    pdf_error,
)
from services.registry.pdf_answers import (
    Seen,
    only_sense,
    page_content,
    page_seen,
    result_of,
    some,
    understood,
)

# All of them have one clock; few enough that each has the time it needs.
PAGES_PER_TASK = 16

CRASH: tuple[str, type[PdfError | PdfReaderLost]] = ("crash", PdfUnreadable)
DEATHS: dict[int, tuple[str, type[PdfError | PdfReaderLost]]] = {
    -signal.SIGXCPU: ("computing_time", PdfTimeout),
    -signal.SIGKILL: ("somebody_else", PdfReaderLost),
}


@dataclass(frozen=True, kw_only=True)
class SandboxLimits:
    """What one task may use. The wall clock is generous: computing time is what counts."""

    children: int = 2
    memory_bytes: int = 1 << 30
    cpu_seconds: int = 10
    wall_seconds: float = 30.0
    answer_bytes: int = 32 << 20
    tasks_per_child: int = 500
    pages: int = 10_000


class Child:
    """One confined process; tasks go to it by socket, answers come back by pipe."""

    def __init__(
        self, process: asyncio.subprocess.Process, tasks: socket.socket, limits: SandboxLimits
    ) -> None:
        self._process = process
        self._tasks = tasks
        self._limits = limits
        self.tasks_done = 0

    @property
    def pid(self) -> int:
        """Its process id, and that of its process group."""
        return self._process.pid

    @classmethod
    async def start(cls, limits: SandboxLimits) -> "Child":
        """Start a child with an empty environment and wait until it has given up its rights."""
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *command(limits),
                stdin=theirs.fileno(),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        except BaseException as error:  # also when whoever asked has gone
            ours.close()
            if isinstance(error, OSError):
                raise PdfReaderLost from error
            raise
        finally:
            theirs.close()
        child = cls(process, ours, limits)
        await child._get_ready()
        return child

    async def _get_ready(self) -> None:
        try:
            await self._answer([])
        except BaseException as error:
            self.kill()
            await self.gone()
            if isinstance(error, PdfError):  # there was no PDF yet that could be to blame
                raise PdfReaderLost from error
            raise

    async def perform(
        self, task: dict[str, Any], descriptor: int, parts: list[Seen]
    ) -> dict[str, Any]:
        """Hand the file over, gather the parts as they come, and wait for the last answer.

        The PDF may have taken the child over: what it tells is bounded as a whole, in number,
        length and time, and believed only as far as it makes sense.
        """
        try:
            with read_only(descriptor) as handed:
                socket.send_fds(self._tasks, [json.dumps(task).encode()], [handed])
        except OSError as error:  # it died while it was idle
            raise PdfReaderLost from error
        answer = await self._answer(parts, most_parts=len(task.get("pages", ())))
        self.tasks_done += 1
        return answer

    async def _answer(self, parts: list[Seen], *, most_parts: int = 0) -> dict[str, Any]:
        """The last answer to a task; the parts before it are gathered as they come."""
        left_bytes = self._limits.answer_bytes
        try:
            async with asyncio.timeout(self._limits.wall_seconds):
                while True:
                    frame = await self._read_frame(left_bytes)
                    left_bytes -= len(frame)
                    with only_sense():
                        answer = dict(json.loads(frame))
                        if "part" not in answer:
                            return answer
                        if len(parts) == most_parts:
                            raise ValueError("more parts than pages")
                        parts.append(page_seen(answer["part"]))
        except TimeoutError:
            metrics.pdf_children_killed.labels("wall_clock").inc()
            raise PdfStalled from None

    async def _read_frame(self, most_bytes: int) -> bytes:
        answers = self._process.stdout
        assert answers is not None
        try:
            length = int.from_bytes(await answers.readexactly(4), "big")
            if length > most_bytes:
                metrics.pdf_children_killed.labels("answer_too_long").inc()
                raise PdfTooComplex
            return await answers.readexactly(length)
        except asyncio.IncompleteReadError:
            raise death(await self._process.wait()) from None

    def kill(self) -> None:
        """End the whole process group, now."""
        self._tasks.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def gone(self) -> None:
        """Wait until nothing of it is left, not even its pipe."""
        await self._process.communicate()


class PdfSandbox:
    """Runs tasks on PDFs, given as descriptors; as many at a time as there are children."""

    def __init__(self, limits: SandboxLimits) -> None:
        self._limits = limits
        self._free = asyncio.Semaphore(limits.children)
        self._idle: list[Child] = []
        self._going: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """The processes waiting for work."""
        return [child.pid for child in self._idle]

    async def inspect(self, descriptor: int) -> int:
        """Refuse what is not a readable PDF; answer with its number of pages."""

        def count(result: dict[str, Any]) -> int:
            total_pages = result["total_pages"]
            if type(total_pages) is not int or not 1 <= total_pages <= self._limits.pages:
                raise ValueError("no number of pages")
            return total_pages

        answer = await self._run({"act": "inspect"}, descriptor, count)
        return int(result_of(answer))

    async def describe(self, descriptor: int, pages: Sequence[int]) -> dict[int, Seen]:
        """What is on some pages, a few in one task; one that kills its child is blamed alone."""
        seen: dict[int, Seen] = {}
        while left := list(pages)[len(seen) :]:
            asked = left[:PAGES_PER_TASK]
            parts: list[Seen] = []
            task = {"act": "describe", "pages": asked}
            try:
                answer = await self._run(task, descriptor, partial(some, parts), parts)
            except PdfError as error:
                seen |= zip(asked, parts, strict=False)
                # Whoever tells of more pages than were asked for is not believed about the last.
                seen[asked[min(len(parts), len(asked) - 1)]] = error
                continue
            if "refused" in answer:  # the file as a whole: no page is any better
                return seen | dict.fromkeys(left, pdf_error(answer["refused"]))
            seen |= zip(asked, parts, strict=False)
        return seen

    async def read(
        self,
        descriptor: int,
        page: int,
        *,
        neighbours: int = 0,
        include_images: bool = False,
        include_render: bool = False,
    ) -> PageContent:
        """The page's text and, as asked, its neighbours' text, its images and its picture."""
        task = {
            "act": "read",
            "page": page,
            "neighbours": neighbours,
            "include_images": include_images,
            "include_render": include_render,
        }
        answer = await self._run(task, descriptor, lambda result: page_content(page, result))
        content: PageContent = result_of(answer)
        return content

    async def warm(self) -> None:
        """Start the first child ahead of the first task."""
        async with self._free:
            if not self._idle:
                self._idle.append(await Child.start(self._limits))

    async def close(self) -> None:
        """End every child and wait until they are gone; one that still works ends with its task."""
        self._closed = True
        while self._idle:
            self._retire(self._idle.pop())
        await asyncio.gather(*self._going)

    async def _run(
        self,
        task: dict[str, Any],
        descriptor: int,
        understand: Callable[[Any], object],
        parts: list[Seen] | None = None,
    ) -> dict[str, Any]:
        act = task["act"]
        parts = [] if parts is None else parts
        try:
            with metrics.pdf_task_seconds.labels(act).time():
                answer = await self._answer(task, descriptor, understand, parts)
        except (PdfError, PdfReaderLost) as error:
            metrics.pdf_tasks.labels(act, error.reason).inc()
            raise
        metrics.pdf_tasks.labels(act, answer.get("refused", "done")).inc()
        return answer

    async def _answer(
        self,
        task: dict[str, Any],
        descriptor: int,
        understand: Callable[[Any], object],
        parts: list[Seen],
    ) -> dict[str, Any]:
        try:
            return await self._attempt(task, descriptor, understand, parts)
        except PdfReaderLost:  # ended from outside, perhaps while idle: not the fault of this PDF
            parts.clear()
            return await self._attempt(task, descriptor, understand, parts)

    async def _attempt(
        self,
        task: dict[str, Any],
        descriptor: int,
        understand: Callable[[Any], object],
        parts: list[Seen],
    ) -> dict[str, Any]:
        async with self._free:
            child = self._idle.pop() if self._idle else await Child.start(self._limits)
            try:
                answer = await child.perform(task, descriptor, parts)
                # While the child can still be given up: one that talks nonsense meets no other PDF.
                with only_sense():
                    answer = understood(answer, understand)
            except BaseException:
                self._retire(child)
                raise
            worn = child.tasks_done >= self._limits.tasks_per_child or spent(answer, parts)
            if worn or self._closed:
                self._retire(child)
            else:
                self._idle.append(child)
            return answer

    def _retire(self, child: Child) -> None:
        child.kill()
        going = asyncio.create_task(child.gone())
        self._going.add(going)
        going.add_done_callback(self._going.discard)


@asynccontextmanager
async def open_sandbox(limits: SandboxLimits) -> AsyncIterator[PdfSandbox]:
    """A sandbox whose first child starts in the background: serving does not wait for it."""
    sandbox = PdfSandbox(limits)
    warming = asyncio.create_task(sandbox.warm())
    try:
        yield sandbox
    finally:
        warming.cancel()
        await asyncio.gather(warming, return_exceptions=True)
        await sandbox.close()


def command(limits: SandboxLimits) -> Sequence[str]:
    """Isolated mode: no PYTHON* variables, no user packages, no current folder on the path."""
    granted = (limits.memory_bytes, limits.cpu_seconds, limits.answer_bytes, limits.pages)
    child = (sys.executable, "-I", "-B", "-m", "services.registry.pdf_child")
    return [*child, *map(str, (os.getpid(), *granted))]


@contextmanager
def read_only(descriptor: int) -> Iterator[int]:
    """The same file, opened anew: whoever gets this cannot change the bytes that were hashed."""
    anew = os.open(f"/dev/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield anew
    finally:
        os.close(anew)


def spent(answer: dict[str, Any], parts: Sequence[Seen]) -> bool:
    """A child that ran out of memory once is not trusted with another file."""
    last = isinstance(parts[-1], PdfTooComplex) if parts else False
    return last or answer.get("refused") == PdfTooComplex.reason


def death(status: int) -> PdfError | PdfReaderLost:
    """What the end of a child in the middle of a task says about the PDF."""
    by, error = DEATHS.get(status, ("exit", PdfTooComplex) if status > 0 else CRASH)
    metrics.pdf_children_killed.labels(by).inc()
    return error()
