"""Finds out whether a user may see a page and what is on it; remembers what the Registry said."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog

from services.cache.clients import RegistryClient
from services.cache.domain import Ask, ResolvedPage
from services.cache.memory import PageMemory
from services.runtime.errors import GlossaError

log = structlog.get_logger()

FIRST_RECONNECT_SECONDS = 0.1
LONGEST_RECONNECT_SECONDS = 2.0


class ResolvePage:
    """Pages of users: from memory while that can be believed, from the Registry otherwise."""

    def __init__(self, *, registry: RegistryClient, memory: PageMemory) -> None:
        self._registry = registry
        self._memory = memory

    async def resolve(self, ask: Ask) -> ResolvedPage:
        page = self._memory.get(ask)
        if page is None:
            ticket = self._memory.ticket()
            page = await self._registry.resolve_page(ask)
            self._memory.add(ask, page, ticket)
        return page

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Hear of every reference that goes away, until the block ends."""
        task = asyncio.create_task(self._follow(), name="follow_revocations")
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _follow(self) -> None:
        delay = FIRST_RECONNECT_SECONDS
        while True:
            began = False
            try:
                async for revoked in self._registry.watch_revocations():
                    if not began:
                        self._memory.begin()
                        began, delay = True, FIRST_RECONNECT_SECONDS
                    self._memory.hear(revoked)
            except GlossaError as error:
                log.warning("revocations_not_heard", reason=error.reason)
            except Exception:
                log.exception("revocations_not_heard")
            self._memory.distrust()
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_RECONNECT_SECONDS)
