"""How many pages of real documents are recognised after qpdf, mutool and Ghostscript.

Bars: 99 % after qpdf and mutool, 90 % after Ghostscript, and no two different pages alike.
Run it as `python -m tests.bench.fingerprints FOLDER`; tools that are missing are left out.
"""

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import pymupdf

from services.registry.domain import PageMetadata
from services.registry.sandbox import PdfSandbox, SandboxLimits, open_sandbox

TOOLS = {
    "qpdf": (["qpdf", "--linearize", "--object-streams=generate", "--recompress-flate"], 0.99),
    "mutool": (["mutool", "clean", "-gggg", "-z", "-s", "-c"], 0.99),
    "gs": (["gs", "-q", "-sDEVICE=pdfwrite"], 0.90),
}


async def looked_at(sandbox: PdfSandbox, path: Path) -> list[str]:
    """The fingerprints of a document's pages; nothing when it cannot be read as a whole."""
    try:
        with pymupdf.open(path) as document:  # type: ignore[no-untyped-call]
            pages = range(1, document.page_count + 1)
            if not document.is_pdf or document.needs_pass:
                return []
    except (RuntimeError, ValueError):
        return []
    with path.open("rb") as file:
        seen = await sandbox.describe(file.fileno(), pages)
    return [one.fingerprint for one in seen.values() if isinstance(one, PageMetadata)]


def rewritten(tool: str, path: Path, folder: Path) -> Path | None:
    """The document as the tool writes it; nothing when it refuses."""
    target = folder / f"{tool}.pdf"
    target.unlink(missing_ok=True)
    order = ["-o", str(target), str(path)] if tool == "gs" else [str(path), str(target)]
    subprocess.run([*TOOLS[tool][0], *order], capture_output=True, check=False)
    return target if target.exists() and target.stat().st_size else None


def letters_of(path: Path) -> list[str]:
    with pymupdf.open(path) as document:  # type: ignore[no-untyped-call]
        return ["".join(page.get_text().split()) for page in document]


async def measure(paths: list[Path]) -> int:
    pages, equal = defaultdict[str, int](int), defaultdict[str, int](int)
    texts = defaultdict[str, set[str]](set)
    tools = [tool for tool in TOOLS if shutil.which(tool)]
    async with open_sandbox(SandboxLimits(children=2)) as sandbox:
        for path in paths:
            original = await looked_at(sandbox, path)
            if original:
                for fingerprint, text in zip(original, letters_of(path), strict=False):
                    texts[fingerprint].add(text)
            for tool in tools:
                with tempfile.TemporaryDirectory() as made:
                    copy = await asyncio.to_thread(rewritten, tool, path, Path(made))
                    found = await looked_at(sandbox, copy) if copy else []
                if len(found) == len(original):
                    pages[tool] += len(original)
                    equal[tool] += sum(map(str.__eq__, found, original))
    alike = sum(len(different) > 1 for different in texts.values())
    missed = alike > 0
    for tool in tools:
        share, bar = equal[tool] / max(pages[tool], 1), TOOLS[tool][1]
        missed |= share < bar
        print(f"fingerprints after {tool:7} {share:7.2%} of {pages[tool]} pages (bar {bar:.0%})")
    print(f"fingerprints shared by pages with different text: {alike} (bar 0)")
    return int(missed)


if __name__ == "__main__":
    sys.exit(asyncio.run(measure(sorted(Path(sys.argv[1]).glob("*.pdf")))))
