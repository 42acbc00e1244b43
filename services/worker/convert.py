"""From a leased job to Markdown: the pages of a document one after the other, pictures in words."""

from dataclasses import replace

from services.runtime.errors import InvalidInput, RelayedError
from services.worker.clients import Registry
from services.worker.domain import ImageSummary, Job, PageContent, Progress, Stage
from services.worker.image_analysis import ImageAnalysis, Tell
from services.worker.model import ModelMismatch
from services.worker.model_calls import ModelCalls
from services.worker.page_markdown import page_markdown, plain
from services.worker.thinking import think

# As much as the Cache takes.
MOST_BYTES = 3 << 20
# Telling each of a thousand pages would be more work than reading them.
MOST_TOLD = 100
# More do not make an attempt longer.
MOST_CHUNKS = 20

PAGE_OUT_OF_RANGE = "PAGE_OUT_OF_RANGE"
PICTURE_ONLY = "*This page is a picture, and no model is there to read it.*"
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
        pages: list[str] = []
        unread: list[RelayedError] = []
        total = size = 0
        while not pages or total == 0 or len(pages) < total:
            await self._tell(tell, len(pages), total)
            number = len(pages) + 1
            try:
                total, body = await self._page(job, number)
            except RelayedError as error:
                if error.reason == PAGE_OUT_OF_RANGE:  # it had no page that could tell how many
                    break
                if error.code != "INVALID_ARGUMENT":
                    raise
                unread.append(error)
                body = f"*This page could not be read: {plain(error.reason)}.*"
            pages.append(f"<!-- page {number} -->\n\n{body}".rstrip())
            size += len(pages[-1].encode()) + 2
            if size > MOST_BYTES:
                raise ConversionTooLarge("the document has more text than 3 MiB of Markdown")
        if len(unread) == len(pages):
            raise unread[0]
        return "\n\n".join(pages) + "\n"

    async def _tell(self, tell: Tell, done: int, total: int) -> None:
        if done % max(1, total // MOST_TOLD) == 0:
            chunks = min(total, MOST_CHUNKS)
            await tell(Progress(stage=Stage.READING, done=done, total=total, chunks=chunks))

    async def _page(self, job: Job, number: int) -> tuple[int, str]:
        """How many pages there are, and this one."""
        sees = self._calls.sees
        content = await self._registry.get_page_content(job.pdf_hash, number, include_images=True)
        if content.is_scanned:
            body = await self._scan(job, number) if sees else PICTURE_ONLY
            return content.total_pages, body
        summaries = await self._images.analyse(job, content.images, _quietly) if sees else ()
        return content.total_pages, await think(_render, content, summaries)

    async def _scan(self, job: Job, number: int) -> str:
        """What a model reads on the picture of the page."""
        render = await self._registry.get_render(job.pdf_hash, number)
        if render is None:
            return ""
        [seen] = await self._images.analyse(job, [render], _quietly)
        if not seen.ocr_text:
            return page_markdown("", (), [seen])
        return page_markdown(seen.ocr_text, (), [replace(seen, ocr_text="")])


def _render(content: PageContent, summaries: tuple[ImageSummary, ...]) -> str:
    body = page_markdown(content.text, content.neighbours, summaries)
    return f"{HIDDEN_TEXT}\n\n{body}" if content.has_hidden_text else body


async def _quietly(_: Progress) -> None:
    """How far the pages are is told; their pictures are a part of that."""
