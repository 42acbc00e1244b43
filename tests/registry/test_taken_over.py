"""A PDF that has taken its child over is heard within bounds, and believed if it makes sense."""

import json
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from services.registry import sandbox as sandbox_module
from services.registry.domain import PageMetadata
from services.registry.errors import PdfError, PdfStalled, PdfTooComplex, PdfUnreadable
from services.registry.sandbox import PAGES_PER_TASK, PdfSandbox, SandboxLimits, open_sandbox
from tests.registry import pdfs
from tests.registry.test_sandbox import described, handed_over, killed, until_gone

# What a child is once a PDF has its way: any program that can talk to the parent.
PROGRAM = """
import json, os, socket, sys, time
tasks = socket.socket(fileno=os.dup(0))
def tell_raw(frame):
    whole = len(frame).to_bytes(4, "big") + frame
    while whole:
        whole = whole[os.write(1, whole):]
def tell(told):
    tell_raw(json.dumps(told).encode())
tell({"ready": True})
part = {"part": {"result": {
    "word_count": 1, "images_count": 0, "is_scanned": False, "has_hidden_text": False,
    "fingerprint": "2:" + "0" * 64}}}
while True:
    message, handed, _, _ = socket.recv_fds(tasks, 1 << 16, 1)
    if not message:
        break
    os.close(handed[0])
    task = json.loads(message)
"""


@asynccontextmanager
async def taken_over(
    monkeypatch: pytest.MonkeyPatch, acts: str, **limits: Any
) -> AsyncIterator[tuple[PdfSandbox, int]]:
    """A sandbox whose children do this with every task, and a file to give them."""
    program = PROGRAM + textwrap.indent(textwrap.dedent(acts), "    ")
    monkeypatch.setattr(sandbox_module, "command", lambda _: (sys.executable, "-c", program))
    with handed_over(pdfs.text_pdf("any")) as file:
        async with open_sandbox(SandboxLimits(children=1, **limits)) as sandbox:
            yield sandbox, file


async def test_parts_without_end_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    acts = "while True: tell(part)"
    async with taken_over(monkeypatch, acts) as (sandbox, file):
        await sandbox.warm()
        [pid] = sandbox.pids
        seen = await sandbox.describe(file, [1, 2, 3])
        await until_gone(pid)
    assert [type(seen[page]) for page in (1, 2, 3)] == [PageMetadata, PageMetadata, PdfUnreadable]


async def test_parts_without_end_are_cut_off_where_none_are_expected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with taken_over(monkeypatch, "while True: tell(part)") as (sandbox, file):
        with pytest.raises(PdfUnreadable):
            await sandbox.inspect(file)


async def test_many_pages_are_asked_for_in_tasks_of_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that one clock for each task is fair."""
    acts = """
    assert len(task["pages"]) <= most
    for page in task["pages"]: tell(part)
    tell({"result": {}})
    """
    acts = f"most = {PAGES_PER_TASK}\n" + textwrap.dedent(acts)
    async with taken_over(monkeypatch, acts) as (sandbox, file):
        seen = await sandbox.describe(file, range(1, 3 * PAGES_PER_TASK))
    assert len(seen) == 3 * PAGES_PER_TASK - 1
    assert all(isinstance(one, PageMetadata) for one in seen.values())


async def test_a_result_without_pages_is_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with taken_over(monkeypatch, 'tell({"result": {}})') as (sandbox, file):
        seen = await sandbox.describe(file, [1, 2])
    assert [type(one) for one in seen.values()] == [PdfUnreadable] * 2


async def test_parts_that_drip_have_one_clock_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part comes well in time; all of them do not."""
    acts = "while True: tell(part); time.sleep(1.0)"
    before = killed("wall_clock")
    async with taken_over(monkeypatch, acts, wall_seconds=3.0) as (sandbox, file):
        seen = await sandbox.describe(file, range(1, PAGES_PER_TASK + 1))
    stalled = [one for one in seen.values() if isinstance(one, PdfStalled)]
    assert killed("wall_clock") - before == len(stalled) > 0


async def test_parts_have_one_length_together(monkeypatch: pytest.MonkeyPatch) -> None:
    acts = """
    part["part"]["padding"] = "x" * 300
    while True: tell(part)
    """
    async with taken_over(monkeypatch, acts, answer_bytes=1000) as (sandbox, file):
        seen = await sandbox.describe(file, [1, 2, 3])
    assert [type(seen[page]) for page in (1, 2)] == [PageMetadata, PdfTooComplex]


WRONG_METADATA: list[dict[str, Any]] = [
    {"word_count": "many"},
    {"word_count": -1},
    {"word_count": 2**31},
    {"word_count": True},
    {"images_count": 0.5},
    {"is_scanned": "no"},
    {"fingerprint": "2:" + "0" * 63 + "\x00"},
    {"fingerprint": ""},
    {"more": 1},
]


@pytest.mark.parametrize("wrong", WRONG_METADATA, ids=str)
async def test_a_page_that_cannot_be_is_unreadable(
    wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    acts = f"""
    part["part"]["result"] |= json.loads({json.dumps(wrong)!r})
    tell(part)
    tell({{"result": {{}}}})
    """
    async with taken_over(monkeypatch, acts) as (sandbox, file):
        await sandbox.warm()
        [pid] = sandbox.pids
        assert isinstance((await sandbox.describe(file, [1]))[1], PdfUnreadable)
        await until_gone(pid)  # it meets no other PDF


@pytest.mark.parametrize(
    "told",
    [
        'tell_raw(b"no json")',
        'tell_raw(b"\\xff")',
        'tell_raw(b"")',
        "tell([])",
        "tell(1)",
        "tell({})",
        'tell({"result": None})',
        'tell({"result": []})',
        'tell({"result": {"total_pages": 0}})',
        'tell({"result": {"total_pages": -1}})',
        'tell({"result": {"total_pages": 10 ** 9}})',
        'tell({"result": {"total_pages": "1"}})',
        'tell({"refused": ["PDF_EMPTY"]})',
        'tell({"refused": "MADE_UP"})',
        'tell({"part": 1})',
        'tell_raw(b"[" * 100_000)',
    ],
)
@pytest.mark.parametrize("act", ["inspect", "describe", "read"])
async def test_nonsense_is_a_damaged_pdf(
    told: str, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with taken_over(monkeypatch, told) as (sandbox, file):
        acts: dict[str, Callable[[int], Awaitable[object]]] = {
            "inspect": sandbox.inspect,
            "describe": lambda file: described(sandbox, file, 1),
            "read": lambda file: sandbox.read(file, 1),
        }
        with pytest.raises(PdfError) as refused:
            await acts[act](file)
    assert refused.value.reason == "PDF_UNREADABLE"
