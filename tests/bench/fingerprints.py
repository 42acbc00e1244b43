"""How many pages of real documents are recognised after qpdf, mutool and Ghostscript.

Bars: 99 % after qpdf and mutool, 90 % after Ghostscript, and no two different pages alike.

Run it as `python -m tests.bench.fingerprints FOLDER...`; without a folder it takes what Debian's
documentation packages have under /usr/share/doc and /usr/share/R. Measured are all `*.pdf` and
`*.pdf.gz` below the folders, each content once, the first 150 pages of each; what is encrypted, or
has no pages or more than 500 (mutool would take for ever), is left out. A page that a tool loses
counts as missed; a tool that is missing or refuses a document does not count. Pages are missed for
their text, drawings or pictures; `--why` shows where they begin to differ.
"""

import asyncio
import gzip
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymupdf

from services.registry import page_identity, pdf_pages
from services.registry.domain import PageMetadata
from services.registry.sandbox import PdfSandbox, SandboxLimits, open_sandbox

DOCUMENTATION = ("/usr/share/doc", "/usr/share/R")
MOST_PAGES = 150
LONGEST = 500
TOOLS = {
    "qpdf": (["qpdf", "--linearize", "--object-streams=generate", "--recompress-flate"], 0.99),
    "mutool": (["mutool", "clean", "-gggg", "-z", "-s", "-c"], 0.99),
    "gs": (["gs", "-q", "-sDEVICE=pdfwrite", f"-dLastPage={MOST_PAGES}"], 0.90),
}


@dataclass(kw_only=True)
class Score:
    """How a tool's copies fared."""

    pages: int = 0
    equal: int = 0
    causes: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        return self.equal / max(self.pages, 1)

    def add(self, other: "Score") -> None:
        self.pages += other.pages
        self.equal += other.equal
        self.causes += other.causes

    def __str__(self) -> str:
        causes = ", ".join(f"{cause} {count}" for cause, count in self.causes.most_common())
        return f"{self.equal}/{self.pages}" + (f" ({causes})" if causes else "")


def corpus(folders: Sequence[str], into: Path) -> Iterator[Path]:
    """Every document once, unpacked."""
    seen = set()
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.pdf*")):
            if path.suffix not in {".pdf", ".gz"} or not path.is_file():
                continue
            content = path.read_bytes()
            content = gzip.decompress(content) if path.suffix == ".gz" else content
            digest = hashlib.sha256(content).digest()
            if digest not in seen and content.startswith(b"%PDF-"):
                seen.add(digest)
                copy = into / path.name.removesuffix(".gz")
                copy.write_bytes(content)
                yield copy


async def looked_at(sandbox: PdfSandbox, path: Path) -> dict[int, str]:
    """The fingerprints of a document's pages, as far as it can be read."""
    try:
        with pymupdf.open(path) as document:  # type: ignore[no-untyped-call]
            pages = range(1, min(document.page_count, MOST_PAGES) + 1)
            if not document.is_pdf or document.needs_pass or document.page_count > LONGEST:
                return {}
    except (RuntimeError, ValueError):
        return {}
    with path.open("rb") as file:
        seen = await sandbox.describe(file.fileno(), pages)
    return {n: one.fingerprint for n, one in seen.items() if isinstance(one, PageMetadata)}


def rewritten(tool: str, path: Path, folder: Path) -> Path | None:
    """The document as the tool writes it; nothing when it refuses."""
    target = folder / f"{tool}.pdf"
    target.unlink(missing_ok=True)
    order = ["-o", str(target), str(path)] if tool == "gs" else [str(path), str(target)]
    subprocess.run([*TOOLS[tool][0], *order], capture_output=True, check=False)
    return target if target.exists() and target.stat().st_size else None


def parts(path: Path, page: int) -> dict[str, Sequence[Any]]:
    """What the fingerprint of a page is made of."""
    with pymupdf.open(path) as document:  # type: ignore[no-untyped-call]
        sheet = document[page - 1]
        layout = sheet.get_textpage(flags=pdf_pages.TEXT_FLAGS)
        return {
            "text": page_identity.letters(sheet.get_texttrace()),
            "drawings": [
                told for one in sheet.get_cdrawings() for told in page_identity.strokes(one)
            ],
            "pictures": sorted(
                (pdf_pages.picture_digest(one.image), one.image.w(), one.image.h())
                for one in pdf_pages.drawn_images(sheet, layout)
            ),
        }


def cause(original: Path, copy: Path, page: int, *, shown: bool) -> str:
    """Which parts of a page differ."""
    one, other = parts(original, page), parts(copy, page)
    different = [name for name in one if one[name] != other[name]]
    for name in different if shown else ():
        mine, theirs = one[name], other[name]
        pairs = enumerate(zip(mine, theirs, strict=False))
        place = next((n for n, (a, b) in pairs if a != b), min(len(mine), len(theirs)))
        print(f"  {original.name} page {page}: {name} differ at {place}")
        for told in (mine, theirs):
            near = told[max(0, place - 10) : place + 20] if name == "text" else told[place:][:1]
            print(f"    {len(told):6} {near!r:.300}")
    return " and ".join(different) or "place"


def letters_of(path: Path) -> list[str]:
    with pymupdf.open(path) as document:  # type: ignore[no-untyped-call]
        last = min(document.page_count, MOST_PAGES)
        return ["".join(document[n].get_text().split()) for n in range(last)]


async def compared(
    sandbox: PdfSandbox, tool: str, path: Path, original: dict[int, str], *, why: bool
) -> Score:
    """One document after one tool."""
    with tempfile.TemporaryDirectory() as made:
        copy = await asyncio.to_thread(rewritten, tool, path, Path(made))
        if copy is None:
            return Score()
        found = await looked_at(sandbox, copy)
        missed = [page for page, seen in original.items() if found.get(page) != seen]
        causes = Counter(
            cause(path, copy, page, shown=why) if page in found else "lost" for page in missed
        )
    return Score(pages=len(original), equal=len(original) - len(missed), causes=causes)


async def measure(folders: Sequence[str], *, why: bool) -> int:
    scores = {tool: Score() for tool in TOOLS if shutil.which(tool)}
    texts = defaultdict[str, set[str]](set)
    async with open_sandbox(SandboxLimits(children=2)) as sandbox:
        with tempfile.TemporaryDirectory() as unpacked:
            for path in corpus(folders, Path(unpacked)):
                original = await looked_at(sandbox, path)
                if not original:
                    print(f"{path.name:60.60} left out", flush=True)
                    continue
                texts_here = letters_of(path)
                for page, seen in original.items():
                    texts[seen].add(texts_here[page - 1])
                told = []
                for tool, score in scores.items():
                    score_here = await compared(sandbox, tool, path, original, why=why)
                    score.add(score_here)
                    told.append(f"{tool} {score_here}")
                print(f"{path.name:60.60} {'  '.join(told)}", flush=True)
    return judged(scores, sum(len(different) > 1 for different in texts.values()))


def judged(scores: dict[str, Score], alike: int) -> int:
    """Tell the figures; 1 when a bar is missed."""
    print()
    for tool, score in scores.items():
        print(f"fingerprints after {tool:7} {score.share:7.2%}  {score}, bar {TOOLS[tool][1]:.0%}")
    print(f"fingerprints shared by pages with different text: {alike}, bar 0")
    return int(alike > 0 or any(score.share < TOOLS[tool][1] for tool, score in scores.items()))


if __name__ == "__main__":
    chosen = [argument for argument in sys.argv[1:] if argument != "--why"]
    sys.exit(asyncio.run(measure(chosen or DOCUMENTATION, why="--why" in sys.argv)))
