"""From a leased job to stickers: read the page, look at its pictures, explain its chunks, merge."""

from dataclasses import replace

import structlog

from services.runtime.errors import DependencyDown
from services.worker.chunk_store import ChunkStore
from services.worker.chunks import ChunkPlan, plan_chunks
from services.worker.clients import Registry
from services.worker.domain import (
    Explanation,
    Job,
    Page,
    PageContent,
    Progress,
    Stage,
    Sticker,
)
from services.worker.image_analysis import ImageAnalysis, Tell
from services.worker.merge import merge
from services.worker.metrics import CHUNKS_RESUMED
from services.worker.model import ModelMismatch
from services.worker.model_calls import ModelCalls

log = structlog.get_logger()

WITH_IMAGES = "with_images"


class Pipeline:
    """Explains pages; what it has paid for is kept, so that a retry goes on where it stopped."""

    def __init__(
        self,
        *,
        registry: Registry,
        calls: ModelCalls,
        images: ImageAnalysis,
        chunks: ChunkStore,
        prompt_version: str,
    ) -> None:
        self._registry = registry
        self._calls = calls
        self._images = images
        self._chunks = chunks
        self._prompt_version = prompt_version

    async def explain(self, job: Job, tell: Tell) -> tuple[Sticker, ...]:
        """The stickers of a page; none for a page that has nothing on it."""
        if (job.model, job.prompt_version) != (self._calls.model, self._prompt_version):
            raise ModelMismatch(f"the job wants {job.model} with prompts {job.prompt_version}")
        await tell(Progress(stage=Stage.READING))
        page = await self._look(job, await self._read(job), tell)
        if self._is_empty(page):
            return ()
        return (await self._explain_chunks(job, page, tell)).stickers

    async def forget(self, job: Job) -> None:
        """The generation has ended: nobody will go on with it."""
        try:
            await self._chunks.forget(job.lease.generation_id)
        except DependencyDown as error:  # it goes by age then
            log.warning("chunk_plan_not_forgotten", reason=error.reason)

    async def _read(self, job: Job) -> PageContent:
        looks = self._calls.sees and job.effective_mode == WITH_IMAGES
        content = await self._registry.get_page_content(
            job.pdf_hash, job.page, include_images=looks
        )
        if self._calls.sees and content.is_to_be_seen:
            render = await self._registry.get_render(job.pdf_hash, job.page)
            return replace(content, render=render)
        if self._calls.sees and not content.text.strip() and not job.images_count:
            # Neither text nor picture: lines and shapes may be there all the same.
            render = await self._registry.get_render(job.pdf_hash, job.page, even_if_blank=False)
            return replace(content, render=render)
        return content

    async def _look(self, job: Job, content: PageContent, tell: Tell) -> Page:
        # Who sees the page sees its pictures.
        pictures = () if content.render else content.images
        return Page(
            page=job.page,
            text=content.text,
            locale=job.locale,
            neighbours=content.neighbours,
            has_hidden_text=content.has_hidden_text,
            effective_mode=job.effective_mode,
            images_count=job.images_count,
            summaries=await self._images.analyse(job, pictures, tell),
            render=content.render,
        )

    def _is_empty(self, page: Page) -> bool:
        """Whether there is nothing to explain; who cannot see says so of pictures as well."""
        if page.text.strip() or page.render is not None:
            return False
        return not any(one.shows_content for one in page.summaries) and (
            self._calls.sees or not page.images_count
        )

    async def _explain_chunks(self, job: Job, page: Page, tell: Tell) -> Explanation:
        plan, explained = await self._resume(job, plan_chunks(page))
        parts = plan.cut(page)
        CHUNKS_RESUMED.inc(len(explained))
        explanations: list[Explanation] = []
        for number, part in enumerate(parts):
            if number in explained:
                kept = Explanation(stickers=explained[number], model=job.model)
                explanations.append(kept)
                continue
            done = Progress(
                stage=Stage.EXPLAINING, done=number, total=len(parts), chunks=len(parts)
            )
            await tell(done)
            explanation = await self._calls.explain(job, part)
            explanations.append(explanation)
            # The last one too: its delivery may fail.
            await self._save(job, plan, number, explanation)
        return merge(explanations)

    async def _resume(
        self, job: Job, plan: ChunkPlan
    ) -> tuple[ChunkPlan, dict[int, tuple[Sticker, ...]]]:
        try:
            return await self._chunks.resume(job.lease.generation_id, plan)
        except DependencyDown as error:
            log.warning("chunk_plan_not_read", reason=error.reason)
            return plan, {}

    async def _save(self, job: Job, plan: ChunkPlan, number: int, explanation: Explanation) -> None:
        try:
            await self._chunks.save_explained(
                job.lease.generation_id, plan, number, explanation.stickers
            )
        except DependencyDown as error:
            log.warning("chunk_not_saved", chunk=number, reason=error.reason)
