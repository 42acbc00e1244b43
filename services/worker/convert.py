"""From a leased job to Markdown: the pages of a document one after the other, pictures in words."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.runtime.errors import InvalidInput, RelayedError
from services.worker.clients import Registry
from services.worker.domain import (
    Image,
    ImageSummary,
    ImageType,
    Job,
    PageContent,
    Progress,
    Stage,
)
from services.worker.image_analysis import ImageAnalysis, Tell
from services.worker.model import ModelMismatch
from services.worker.model_calls import ModelCalls
from services.worker.page_markdown import page_markdown, pictures_markdown, plain
from services.worker.thinking import think

# As much as the Cache takes.
MOST_BYTES = 3 << 20
# Pages that are read at a time; calls to the model keep the pace of the whole process.
AT_A_TIME = 4
# More do not make an attempt longer.
MOST_CHUNKS = 20

PAGE_OUT_OF_RANGE = "PAGE_OUT_OF_RANGE"
PICTURE_ONLY = "*This page is a picture, and no model is there to read it.*"
UNREAD_PICTURE = "*This page is a picture that could not be read.*"
HIDDEN_TEXT = "*This page holds text that its readers do not see; it may be part of what follows.*"


class ConversionTooLarge(InvalidInput):
    """The Markdown of this document is more than can be handed over."""

    reason = "CONVERSION_TOO_LARGE"


class Conversion:
    """Converts documents. What pictures show is kept, so that a retry does not pay for it again."""

    def __init__(
        self,
        *,
        registry: Registry,
        calls: ModelCalls,
        images: ImageAnalysis,
        version: str,
    ) -> None:
        self._registry = registry
        self._calls = calls
        self._images = images
        self._version = version

    async def convert(self, job: Job, tell: Tell) -> str:
        """The whole document; a page that cannot be read leaves a note, unless none can."""
        if (job.model, job.prompt_version) != (self._calls.model, self._version):
            raise ModelMismatch(f"the job wants {job.model}, version {job.prompt_version}")
        written = _Document()
        while not written.whole:
            await self._tell(tell, written)
            first = len(written.pages) + 1
            # The first one tells how many there are.
            last = min(first + AT_A_TIME - 1, written.total) if written.total else first
            looks = (self._page(job, number) for number in range(first, last + 1))
            for look in await asyncio.gather(*looks):
                written.add(look)
        return written.markdown()

    async def _tell(self, tell: Tell, written: "_Document") -> None:
        total = written.total
        done = len(written.pages) if total else 0  # no page has told yet how many there are
        chunks = min(total, MOST_CHUNKS)
        await tell(Progress(stage=Stage.READING, done=done, total=total, chunks=chunks))

    async def _page(self, job: Job, number: int) -> "_Look":
        try:
            content = await self._registry.get_page_content(
                job.pdf_hash, number, include_images=True
            )
        except RelayedError as error:
            if error.code != "INVALID_ARGUMENT":
                raise
            return _Look(error=error)
        if content.is_scanned:
            body = await self._scan(job, number, content)
        else:
            body = await self._text(job, number, content)
        return _Look(body=body, total_pages=content.total_pages)

    async def _text(self, job: Job, number: int, content: PageContent) -> str:
        summaries = await self._summaries(job, content.images)
        words = await think(_words, content, number)
        return _together(words, pictures_markdown(summaries))

    async def _scan(self, job: Job, number: int, content: PageContent) -> str:
        """What a model reads on the picture of the page, and the few words that are text."""
        words = await think(_words, content, number)
        if not self._calls.sees:
            return _together(words, PICTURE_ONLY)
        render = await self._registry.get_render(job.pdf_hash, number)
        [seen] = await self._summaries(job, [render] if render else []) or (None,)
        if seen is None or seen.image_type is ImageType.UNDESCRIBED:
            return _together(words, UNREAD_PICTURE)
        told = pictures_markdown([replace(seen, ocr_text="")])
        if not seen.ocr_text:
            return _together(words, told)
        # The picture shows the words that are text as well.
        return _together(await think(page_markdown, seen.ocr_text), told)

    async def _summaries(self, job: Job, images: Sequence[Image]) -> tuple[ImageSummary, ...]:
        return await self._images.analyse(job, images, _quietly) if self._calls.sees else ()


@dataclass(frozen=True, kw_only=True)
class _Look:
    """What came of one page."""

    body: str = ""
    total_pages: int = 0
    error: RelayedError | None = None


class _Document:
    """The pages so far."""

    def __init__(self) -> None:
        self.pages: list[str] = []
        self.total = 0
        self._size_bytes = 0
        self._unread: list[RelayedError] = []
        self._ended = False

    @property
    def whole(self) -> bool:
        return self._ended or (self.total > 0 and len(self.pages) == self.total)

    def add(self, look: _Look) -> None:
        if look.error is not None and look.error.reason == PAGE_OUT_OF_RANGE:
            self._ended = True  # no page was there to tell how many there are
            return
        body = look.body
        if look.error is not None:
            self._unread.append(look.error)
            body = f"*This page could not be read: {plain(look.error.reason)}.*"
        self.total = self.total or look.total_pages
        self.pages.append(f"<!-- page {len(self.pages) + 1} -->\n\n{body}".rstrip())
        self._size_bytes += len(self.pages[-1].encode()) + 2
        if self._size_bytes > MOST_BYTES:
            raise ConversionTooLarge("the document has more text than 3 MiB of Markdown")

    def markdown(self) -> str:
        if len(self._unread) == len(self.pages):
            raise self._unread[0]
        return "\n\n".join(self.pages) + "\n"


def _words(content: PageContent, number: int) -> str:
    previous = content.neighbours[0] if number > 1 and content.neighbours else ""
    words = page_markdown(content.text, page=number, previous=previous)
    return _together(HIDDEN_TEXT, words) if content.has_hidden_text else words


def _together(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


async def _quietly(_: Progress) -> None:
    """How far the pages are is told; their pictures are a part of that."""
