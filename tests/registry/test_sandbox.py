"""The sandbox reads good PDFs, refuses bad ones by their reason, and outlives every child."""

import asyncio
import ctypes
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.registry import metrics
from services.registry.domain import PageMetadata
from services.registry.errors import PdfError, PdfReaderLost, PdfStalled, PdfTimeout, PdfUnreadable
from services.registry.sandbox import PdfSandbox, SandboxLimits, open_sandbox, read_only
from tests.registry import pdfs


@contextmanager
def handed_over(content: bytes) -> Iterator[int]:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file.fileno()


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[PdfSandbox]:
    async with open_sandbox(SandboxLimits(children=1, cpu_seconds=5)) as sandbox:
        yield sandbox


async def refusal(sandbox: PdfSandbox, content: bytes) -> str:
    with handed_over(content) as file, pytest.raises(PdfError) as refused:
        await sandbox.inspect(file)
    return refused.value.reason


async def described(sandbox: PdfSandbox, file: int, page: int) -> PageMetadata:
    """One page, or the error it was refused with."""
    seen = (await sandbox.describe(file, [page]))[page]
    if isinstance(seen, PdfError):
        raise seen
    return seen


def knows_landlock() -> bool:
    """Whether this kernel is new enough for every promise of the confinement."""
    return sys.platform.startswith("linux") and bool(ctypes.CDLL(None).syscall(444, 0, 0, 1) >= 6)


async def until(happened: Callable[[], bool]) -> None:
    """Wait for something another process does, which can only be looked for."""
    while not happened():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def until_busy(pid: int) -> None:
    """Wait until a process has computed for a tenth of a second more than it has now."""
    before = ticks(pid)
    await until(lambda: ticks(pid) >= before + 10)


async def until_gone(pid: int) -> None:
    """Wait until a process has ended, whether or not anybody has asked how."""
    await until(lambda: about(pid, "stat").rpartition(")")[2].split()[:1] in ([], ["Z"]))


def ticks(pid: int) -> int:
    fields = about(pid, "stat").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def about(pid: int, what: str) -> str:
    """A file of /proc; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/{what}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def test_pages_are_counted(sandbox: PdfSandbox) -> None:
    with handed_over(pdfs.text_pdf("one", "two", "three")) as file:
        assert await sandbox.inspect(file) == 3


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "PDF_EMPTY"),
        (b"plain text", "NOT_A_PDF"),
        (b"PK\x03\x04" + bytes(2000) + b"%PDF-1.7", "NOT_A_PDF"),
        (pdfs.HTML, "PDF_UNREADABLE"),
        (pdfs.GARBAGE, "PDF_UNREADABLE"),
        (pdfs.text_pdf("cut off")[:150], "PDF_UNREADABLE"),
        (pdfs.pageless_pdf(), "PDF_EMPTY"),
        (pdfs.encrypted_pdf(user_password="secret", owner_password="o"), "PDF_ENCRYPTED"),
        (pdfs.page_tree_pdf(kids=10_001, count=10_001), "PDF_TOO_COMPLEX"),
        (pdfs.page_tree_pdf(kids=1, count=2_000_000_000), "PDF_UNREADABLE"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_cannot_be_read_is_refused_by_reason(
    sandbox: PdfSandbox, content: bytes, reason: str
) -> None:
    assert await refusal(sandbox, content) == reason


async def test_a_pdf_that_only_its_author_may_change_is_read(sandbox: PdfSandbox) -> None:
    with handed_over(pdfs.encrypted_pdf(user_password="", owner_password="o")) as file:
        assert await sandbox.inspect(file) == 1


@pytest.fixture
def closed_file(tmp_path: Path) -> Iterator[int]:
    """A PDF that is open here, in a folder nobody else may enter."""
    path = tmp_path / "closed.pdf"
    path.write_bytes(pdfs.text_pdf("one"))
    with path.open("rb") as file:
        tmp_path.chmod(0)
        yield file.fileno()
    tmp_path.chmod(0o700)


async def test_a_file_in_a_closed_folder_is_read_by_its_descriptor(
    sandbox: PdfSandbox, closed_file: int
) -> None:
    assert await sandbox.inspect(closed_file) == 1


def test_a_file_is_handed_over_for_reading_only() -> None:
    with handed_over(b"hashed already") as file, read_only(file) as handed:
        assert os.pread(handed, 6, 0) == b"hashed"
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(handed, b"changed")


async def test_a_page_that_is_not_there_is_unreadable(sandbox: PdfSandbox) -> None:
    with handed_over(pdfs.text_pdf("only one")) as file, pytest.raises(PdfError) as refused:
        await described(sandbox, file, 4)
    assert refused.value.reason == "PDF_UNREADABLE"


async def test_work_without_end_is_stopped_by_its_computing_time() -> None:
    async with open_sandbox(SandboxLimits(children=1, cpu_seconds=1)) as sandbox:
        with handed_over(pdfs.endless_pdf()) as file, pytest.raises(PdfTimeout) as refused:
            await described(sandbox, file, 1)
        assert refused.value.lasting
        with handed_over(pdfs.text_pdf("still there")) as file:
            assert (await described(sandbox, file, 1)).word_count == 2


async def test_a_wall_clock_that_runs_out_is_not_held_against_the_pdf() -> None:
    limits = SandboxLimits(children=1, wall_seconds=3.0, cpu_seconds=600)
    async with open_sandbox(limits) as sandbox:
        await sandbox.warm()
        [pid] = sandbox.pids
        with handed_over(pdfs.endless_pdf()) as file, pytest.raises(PdfStalled) as refused:
            await described(sandbox, file, 1)
        assert (refused.value.reason, refused.value.lasting) == ("PDF_TIMEOUT", False)
        await until_gone(pid)


async def test_a_page_that_needs_too_much_memory_is_too_complex() -> None:
    limits = SandboxLimits(children=1, memory_bytes=320 << 20)
    async with open_sandbox(limits) as sandbox:
        with handed_over(pdfs.text_bomb_pdf(24)) as file, pytest.raises(PdfError) as refused:
            await described(sandbox, file, 1)
        assert refused.value.reason == "PDF_TOO_COMPLEX"
        with handed_over(pdfs.text_pdf("still there")) as file:
            assert (await described(sandbox, file, 1)).word_count == 2


async def test_a_page_that_kills_its_child_is_blamed_alone() -> None:
    content = pdfs.joined(pdfs.text_pdf("one"), pdfs.endless_pdf(), pdfs.text_pdf("two words"))
    async with open_sandbox(SandboxLimits(children=1, cpu_seconds=1)) as sandbox:
        with handed_over(content) as file:
            seen = await sandbox.describe(file, [1, 2, 3, 9])
    assert [getattr(seen[page], "word_count", None) for page in (1, 3)] == [1, 2]
    assert isinstance(seen[2], PdfTimeout)
    assert isinstance(seen[9], PdfUnreadable)


async def test_a_file_that_cannot_be_opened_is_not_tried_page_by_page(sandbox: PdfSandbox) -> None:
    with handed_over(pdfs.GARBAGE) as file:
        seen = await sandbox.describe(file, [1, 2, 3])
    assert [type(error) for error in seen.values()] == [PdfUnreadable] * 3


def killed(by: str) -> float:
    return float(metrics.pdf_children_killed.labels(by)._value.get())


async def test_what_ended_a_child_is_counted() -> None:
    causes = ("computing_time", "wall_clock", "somebody_else")
    before = {by: killed(by) for by in causes}
    endless = pdfs.endless_pdf()
    async with open_sandbox(SandboxLimits(children=1, cpu_seconds=1)) as sandbox:
        with handed_over(endless) as file:
            await sandbox.describe(file, [1])
    limits = SandboxLimits(children=1, cpu_seconds=600, wall_seconds=3.0)
    async with open_sandbox(limits) as sandbox:
        await sandbox.warm()
        [pid] = sandbox.pids
        with handed_over(endless) as file:
            task = asyncio.create_task(sandbox.describe(file, [1]))
            await until_busy(pid)
            os.kill(pid, signal.SIGKILL)
            await task  # tried again, by another child that is given up by the clock
    assert {by: killed(by) - before[by] for by in causes} == dict.fromkeys(causes, 1.0)


async def test_an_answer_longer_than_agreed_is_too_complex() -> None:
    async with open_sandbox(SandboxLimits(children=1, answer_bytes=1000)) as sandbox:
        with handed_over(pdfs.text_pdf("word " * 300)) as file, pytest.raises(PdfError) as refused:
            await sandbox.read(file, 1)
    assert refused.value.reason == "PDF_TOO_COMPLEX"


async def test_a_child_killed_in_the_middle_is_replaced_without_anyone_noticing() -> None:
    async with open_sandbox(SandboxLimits(children=1, cpu_seconds=2)) as sandbox:
        await sandbox.warm()
        [pid] = sandbox.pids
        with handed_over(pdfs.endless_pdf()) as file:
            task = asyncio.create_task(described(sandbox, file, 1))
            await until_busy(pid)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(PdfTimeout):  # the second child found out what the PDF is like
                await task
        with handed_over(pdfs.text_pdf("still there")) as file:
            assert await sandbox.inspect(file) == 1


async def test_a_child_killed_while_idle_is_replaced(sandbox: PdfSandbox) -> None:
    await sandbox.warm()
    for pid in sandbox.pids:
        os.kill(pid, signal.SIGKILL)
        await until_gone(pid)
    with handed_over(pdfs.text_pdf("still there")) as file:
        assert await sandbox.inspect(file) == 1


async def test_a_reader_that_cannot_start_is_not_the_fault_of_the_pdf() -> None:
    # Nobody can say hello that quickly.
    async with open_sandbox(SandboxLimits(children=1, wall_seconds=0.001)) as sandbox:
        with handed_over(pdfs.text_pdf("fine")) as file, pytest.raises(PdfReaderLost):
            await sandbox.inspect(file)


async def test_a_caller_that_goes_away_leaves_no_busy_child() -> None:
    async with open_sandbox(SandboxLimits(children=1)) as sandbox:
        await sandbox.warm()
        [pid] = sandbox.pids
        with handed_over(pdfs.endless_pdf()) as file:
            task = asyncio.create_task(described(sandbox, file, 1))
            await until_busy(pid)
            task.cancel()
            await asyncio.wait([task])
        await until_gone(pid)


async def test_a_child_is_replaced_after_its_share_of_tasks() -> None:
    async with open_sandbox(SandboxLimits(children=1, tasks_per_child=1)) as sandbox:
        await sandbox.warm()
        [first] = sandbox.pids
        with handed_over(pdfs.text_pdf("one")) as file:
            await sandbox.inspect(file)
            await until_gone(first)
            assert await sandbox.inspect(file) == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
async def test_a_child_has_given_up_what_it_does_not_need(sandbox: PdfSandbox) -> None:
    await sandbox.warm()
    [pid] = sandbox.pids
    limits = about(pid, "limits")
    soft = {line[:25].strip(): line[25:].split()[0] for line in limits.splitlines()}
    assert soft["Max address space"] == str(1 << 30)
    assert soft["Max file size"] == soft["Max core file size"] == soft["Max processes"] == "0"
    assert int(soft["Max open files"]) <= 16
    assert about(pid, "environ") == ""
    assert "NoNewPrivs:\t1" in about(pid, "status")
    assert os.getpgid(pid) == pid


CONFINED = """
import os, sys
from services.registry.confinement import confine
confine(parent_pid=os.getppid(), memory_bytes=1 << 30)
for act in (
    lambda: open("/etc/passwd"),
    lambda: open("/dev/shm/glossa-escape", "w"),
    lambda: os.kill(os.getppid(), 0),
    lambda: __import__("socket").create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5),
):
    try:
        act()
        print("done")
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.mark.skipif(not knows_landlock(), reason="this kernel cannot close the file system")
async def test_a_child_taken_over_cannot_open_signal_or_connect() -> None:
    listener = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CONFINED, str(port)), stdout=asyncio.subprocess.PIPE
        )
        output, _ = await child.communicate()
    assert len(output.split()) == 4
    assert b"done" not in output.split()


# Says that it is ready, and then that four gigabytes are to come, and sends without end.
BOASTING = """
import json, os
ready = json.dumps({"ready": True}).encode()
os.write(1, len(ready).to_bytes(4, "big") + ready)
os.read(0, 1)
os.write(1, b"\\xff" * 4)
while True:
    os.write(1, bytes(1 << 16))
"""


async def test_a_child_taken_over_cannot_fill_the_memory_of_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    boasting = [sys.executable, "-c", BOASTING]
    monkeypatch.setattr("services.registry.sandbox.command", lambda _: boasting)
    async with open_sandbox(SandboxLimits(children=1)) as sandbox:
        with handed_over(pdfs.text_pdf("one")) as file, pytest.raises(PdfError) as refused:
            await sandbox.inspect(file)
    assert refused.value.reason == "PDF_TOO_COMPLEX"


async def test_children_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    pdf = tmp_path / "endless.pdf"
    pdf.write_bytes(pdfs.endless_pdf())
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.registry.sandbox_holder", str(pdf)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    await until_busy(child)
    parent.kill()
    await parent.communicate()
    await until_gone(child)


async def test_a_child_that_still_works_when_the_sandbox_closes_ends_with_its_task() -> None:
    with handed_over(pdfs.text_pdf("a", "b", "c")) as file:
        async with open_sandbox(SandboxLimits(children=1)) as sandbox:
            working = asyncio.create_task(sandbox.inspect(file))
            await asyncio.sleep(0)
        pages = await working

    assert pages == 3
    assert sandbox.pids == []
