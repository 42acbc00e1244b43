"""Row 10: metadata of 500 real pages through the sandbox, against PyMuPDF in this process.

Bar: at most twice the time in-process, and 99 of 100 pages known within 100 ms each.
`GLOSSA_BENCH_PDFS` names a folder of real documents; without it pages are made.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pymupdf

from services.registry import pdf_pages
from services.registry.domain import PageMetadata
from services.registry.sandbox import PdfSandbox, SandboxLimits, open_sandbox
from tests.bench.report import Figure, median_ratio, standalone
from tests.registry.test_fingerprints import lecture

ROUNDS = 5
PAGES = 500
MOST_TIMES = 2.0
MOST_SECONDS = 0.1
# As many as the Registry describes in one task after an upload.
PAGES_AT_ONCE = 16

Work = Sequence[tuple[Path, list[int]]]


def chosen_pages(folder: Path) -> Work:
    """The first 500 readable pages of the folder's documents."""
    work, left = [], PAGES
    for path in sorted(folder.glob("*.pdf")):
        try:
            with pymupdf.open(path) as document:  # type: ignore[no-untyped-call]
                usable = document.is_pdf and not document.needs_pass
                pages = range(1, min(document.page_count, left) + 1) if usable else ()
        except (RuntimeError, ValueError):
            continue
        if pages:
            work.append((path, list(pages)))
            left -= len(pages)
    return work


def in_process(work: Work) -> tuple[float, list[float]]:
    began, each = time.perf_counter(), []
    for path, pages in work:
        with path.open("rb") as file, pdf_pages.opened(file.fileno()) as document:
            for page in pages:
                started = time.perf_counter()
                pdf_pages.describe(document, page)
                each.append(time.perf_counter() - started)
    return time.perf_counter() - began, each


async def sandboxed(sandbox: PdfSandbox, work: Work) -> tuple[float, list[float]]:
    """As the Registry does it; each page is taken to need its share of its task."""
    began, each = time.perf_counter(), []
    for path, pages in work:
        with path.open("rb") as file:
            for at in range(0, len(pages), PAGES_AT_ONCE):
                task = pages[at : at + PAGES_AT_ONCE]
                started = time.perf_counter()
                seen = await sandbox.describe(file.fileno(), task)
                each += [(time.perf_counter() - started) / len(task)] * len(task)
                assert all(isinstance(one, PageMetadata) for one in seen.values())
    return time.perf_counter() - began, each


async def single_pages(sandbox: PdfSandbox, work: Work) -> list[float]:
    """The slowest way: every page asked for alone, as by who opens a document in the middle."""
    each = []
    for path, pages in work:
        with path.open("rb") as file:
            for page in pages:
                started = time.perf_counter()
                await sandbox.describe(file.fileno(), [page])
                each.append(time.perf_counter() - started)
    return each


def slowest(each: list[float]) -> float:
    return statistics.quantiles(each, n=100)[98]


async def measure(work: Work, whose: str) -> list[Figure]:
    plain, own, alone = [], [], []
    async with open_sandbox(SandboxLimits(children=1)) as sandbox:
        await sandbox.warm()
        in_process(work)
        for _ in range(ROUNDS):
            plain.append(in_process(work)[0])
            own.append((await sandboxed(sandbox, work))[0])
            alone.append(slowest(await single_pages(sandbox, work)))
    pages, p99 = sum(len(pages) for _, pages in work), 1000 * statistics.median(alone)
    return [
        Figure(
            row=10,
            what=f"metadata of {pages} {whose} pages through the sandbox",
            ours=f"{statistics.median(own):.2f} s",
            reference=f"PyMuPDF in-process {statistics.median(plain):.2f} s",
            value=median_ratio(own, plain),
            unit="x",
            bar=MOST_TIMES,
            at_least=False,
        ),
        Figure(
            row=10,
            what="metadata of one page asked for alone, p99",
            ours=f"{p99:.0f} ms",
            reference="",
            value=p99,
            unit="ms",
            bar=MOST_SECONDS * 1000,
            at_least=False,
        ),
    ]


async def run() -> list[Figure]:
    with tempfile.TemporaryDirectory() as made:
        if folder := os.environ.get("GLOSSA_BENCH_PDFS", ""):
            return await measure(chosen_pages(Path(folder)), "real")
        for number in range(PAGES // 5):
            (Path(made) / f"{number}.pdf").write_bytes(lecture())
        return await measure(chosen_pages(Path(made)), "made")


if __name__ == "__main__":
    sys.exit(standalone(run))
