"""Finds out what the pictures of a page show: each distinct picture once, for everybody."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

import structlog

from services.runtime.errors import DependencyDown
from services.worker.domain import Image, ImageSummary, ImageType, Job, Progress, Stage
from services.worker.image_store import ImageStore
from services.worker.metrics import IMAGES
from services.worker.model import ContentRefused, ModelError, ModelPaused
from services.worker.model_calls import ModelCalls
from services.worker.shared_calls import SharedCalls

log = structlog.get_logger()

# Of one page; how many run in the whole process is the throttle's business.
AT_A_TIME = 4

Tell = Callable[[Progress], Awaitable[None]]


class ImageAnalysis:
    """Summaries from the store, and from the model where there is none yet."""

    def __init__(self, *, calls: ModelCalls, store: ImageStore) -> None:
        self._calls = calls
        self._store = store
        self._under_way: SharedCalls[tuple[str, str], ImageSummary] = SharedCalls()

    async def analyse(
        self, job: Job, images: Sequence[Image], tell: Tell
    ) -> tuple[ImageSummary, ...]:
        """What the images show, in their order. Tells how many of them are known."""
        if not images:
            return ()
        summaries = await self._known(job, [image.digest for image in images])
        IMAGES.labels("known").inc(len(summaries))

        async def tell_progress() -> None:
            done = Progress(stage=Stage.ANALYSING_IMAGES, done=len(summaries), total=len(images))
            await tell(done)

        await tell_progress()
        errors: list[Exception] = []
        unknown = [image for image in images if image.digest not in summaries]
        async with aclosing(self._described(job, unknown)) as results:
            async for result in results:
                if isinstance(result, Exception):
                    errors.append(result)
                else:
                    summaries[result.digest] = result
                    await tell_progress()
        if errors:  # rather one that came of a call than one that was never made
            raise min(errors, key=lambda error: isinstance(error, ModelPaused))
        return tuple(summaries[image.digest] for image in images)

    async def _described(
        self, job: Job, images: Sequence[Image]
    ) -> AsyncGenerator[ImageSummary | Exception, None]:
        """Summaries as they come. One failure stops no other: what it brings is kept."""
        room = asyncio.Semaphore(AT_A_TIME)

        async def describe(image: Image) -> ImageSummary | Exception:
            async with room:
                try:
                    return await self._under_way.run(
                        (job.scope, image.digest), lambda: self._describe(job, image)
                    )
                except Exception as error:  # cancellation is none
                    return error

        tasks = [asyncio.create_task(describe(image)) for image in images]
        try:
            for task in asyncio.as_completed(tasks):
                yield await task
        finally:
            for pending in tasks:
                pending.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _describe(self, job: Job, image: Image) -> ImageSummary:
        # Somebody may have described it since we looked.
        known = await self._known(job, [image.digest])
        if image.digest in known:
            return known[image.digest]
        return await self._ask(job, image)

    async def _ask(self, job: Job, image: Image) -> ImageSummary:
        """A picture the model does not describe leaves its page without a description of it."""
        try:
            description = await self._calls.describe(job, image)
        except ModelError as error:
            if not error.permanent:
                raise
            log.warning("image_undescribed", reason=error.reason, cause=str(error))
            IMAGES.labels("undescribed").inc()
            undescribed = ImageSummary(digest=image.digest, image_type=ImageType.UNDESCRIBED)
            # A refusal is about the picture; anything else may be mended by the next page's time.
            if isinstance(error, ContentRefused):
                await self._save(job, undescribed)
            return undescribed
        IMAGES.labels("described").inc()
        await self._save(job, description.summary)
        return description.summary

    async def _known(self, job: Job, digests: Sequence[str]) -> dict[str, ImageSummary]:
        try:
            return await self._store.list_summaries(digests, job.scope)
        except DependencyDown as error:
            log.warning("image_summaries_not_read", reason=error.reason)
            return {}

    async def _save(self, job: Job, summary: ImageSummary) -> None:
        try:
            await self._store.save_summary(summary, job.scope)
        except DependencyDown as error:
            log.warning("image_summary_not_saved", reason=error.reason)
