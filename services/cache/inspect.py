"""Look at a generation: for who asked for it, or holds its document."""

from uuid import UUID, uuid4

from services.cache.domain import Ask, Generation, GenerationNotFound, Queue, Status, scope_of
from services.cache.generation_store import GenerationStore
from services.cache.queue import Pace
from services.cache.request_store import RequestStore
from services.cache.resolve import ResolvePage
from services.runtime.errors import RelayedError


class InspectGeneration:
    """The use case behind CacheService.GetGeneration."""

    def __init__(
        self,
        *,
        pages: ResolvePage,
        requests: RequestStore,
        generations: GenerationStore,
        pace: Pace,
    ) -> None:
        self._pages = pages
        self._requests = requests
        self._generations = generations
        self._pace = pace

    async def read(self, generation_id: UUID, user_id: str | None) -> tuple[Generation, Queue]:
        """The generation and its place in the queue; `user_id` None means access was checked."""
        generation = await self._generations.read_generation(generation_id)
        if generation is None or not await self._may_see(generation, user_id):
            raise GenerationNotFound("there is no such generation for this user")
        queue = Queue()
        if generation.status is Status.GENERATING:
            queue = await self._generations.read_queue(
                generation_id, seconds_each=self._pace.seconds
            )
        return generation, queue

    async def _may_see(self, generation: Generation, user_id: str | None) -> bool:
        if user_id is None:
            return True
        if generation.is_private:
            return generation.key.scope == scope_of(user_id, shares=False)
        if await self._requests.has_asked(generation.generation_id, user_id):
            return True
        return await self._holds(generation, user_id)

    async def _holds(self, generation: Generation, user_id: str) -> bool:
        """Whoever was served from the cache left no request here, but holds the document."""
        ask = Ask(
            request_id=uuid4(),
            user_id=user_id,
            file_id=None,
            pdf_hash=generation.key.pdf_hash,
            page=generation.key.page,
            locale=generation.key.locale,
        )
        try:
            await self._pages.resolve(ask)
        except RelayedError as error:
            if error.code in {"NOT_FOUND", "INVALID_ARGUMENT"}:
                return False
            raise
        return True
