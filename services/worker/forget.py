"""Drops what nobody will ask for again: plans a crash left behind, pictures no page shows."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from services.runtime.periodic import periodic
from services.worker.chunk_store import ChunkStore
from services.worker.image_store import ImageStore

FORGET_EVERY = timedelta(hours=1)
# Longer than a generation can take, waits that providers ask for included.
KEEP_PLANS = timedelta(days=2)
# Pictures of documents that are gone go too; a page that comes back has them described again.
KEEP_SUMMARIES = timedelta(days=90)


@asynccontextmanager
async def forgetting(chunks: ChunkStore, images: ImageStore) -> AsyncIterator[None]:
    """Forgets now and then until the block ends; any number of workers may do so at once."""

    async def forget_old() -> None:
        await chunks.prune(KEEP_PLANS)
        await images.prune(KEEP_SUMMARIES)

    async with periodic("forget_old", every=FORGET_EVERY, run_once=forget_old):
        yield
