"""Tells watchers which documents lost a reference: one look at the database for all of them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta

import structlog

from services.registry import metrics
from services.registry.revocation_store import RevocationStore
from services.runtime.errors import DependencyDown
from services.runtime.periodic import periodic

log = structlog.get_logger()

# Watchers are promised a message a second, and each message is the outcome of a look.
LOOK_SECONDS = 0.4
LOOK_AT_MOST = 1000
# Long before rows are pruned, a watcher that cannot be served is told so.
PATIENCE_SECONDS = 60.0
KEPT = timedelta(hours=1)
PRUNE_EVERY = timedelta(minutes=10)
LISTEN_EVERY = timedelta(seconds=1)  # after a lost connection
MOST_UNSENT = 100_000
# How long who removes a reference waits for watchers to be told; a stuck one is not waited for.
SETTLE_SECONDS = 1.0


class Draining(DependencyDown):
    """This replica is going away; another one goes on telling."""

    def __init__(self) -> None:
        super().__init__("this registry is shutting down; watch another one", reason="DRAINING")


class FellBehind(DependencyDown):
    """Not everything can be told any more: whoever remembers accesses must forget them."""

    def __init__(self) -> None:
        message = "revocations could not be followed; forget what you remember and watch again"
        super().__init__(message, reason="REVOCATIONS_MISSED")


class Watcher:
    """One stream: what it has not been sent yet. Every look, also one without news, rings."""

    def __init__(self) -> None:
        self._unsent: dict[str, None] = {}
        self._rung = asyncio.Event()
        self._error: DependencyDown | None = None
        # Set while there is nothing on its way.
        self.settled = asyncio.Event()

    def tell(self, pdf_hashes: list[str]) -> None:
        """Add the news of one look."""
        if pdf_hashes:
            self.settled.clear()
        self._unsent.update(dict.fromkeys(pdf_hashes))
        if len(self._unsent) > MOST_UNSENT:
            self.fail(FellBehind())
        self._rung.set()

    def fail(self, error: DependencyDown) -> None:
        """End the stream."""
        self._error = error
        self._rung.set()
        self.settled.set()

    async def news(self) -> list[str]:
        """What came up to the next look, at most one message full; often nothing."""
        if not self._unsent:
            # Whoever asks for more has handed over what it got before.
            self.settled.set()
            await self._rung.wait()
        self._rung.clear()
        if self._error is not None:
            raise self._error
        sent = list(self._unsent)[:LOOK_AT_MOST]
        for pdf_hash in sent:
            del self._unsent[pdf_hash]
        return sent


class Revocations:
    """Follows the table while anybody watches; without watchers it costs nothing."""

    def __init__(self, store: RevocationStore) -> None:
        self._store = store
        self._watchers: set[Watcher] = set()
        self._following: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._hint = asyncio.Event()
        self._seen = 0
        self._looking = asyncio.Lock()
        self._draining = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Prune while the block runs; at its end nobody watches any more."""
        async with periodic("prune_revocations", every=PRUNE_EVERY, run_once=self._prune):
            try:
                yield
            finally:
                await self.drain()
                await self._stop_following()

    async def drain(self) -> None:
        """End every stream; watchers go to another replica."""
        self._draining = True
        for watcher in self._watchers:
            watcher.fail(Draining())

    async def settle(self) -> None:
        """Return when the watchers of this replica have been sent all that has happened so far.

        Who hears that a file is gone must not be served a moment later by somebody who remembers
        it. Watchers of other replicas hear of it within a moment too, but nobody waits for them.
        """
        with suppress(TimeoutError, DependencyDown):
            async with asyncio.timeout(SETTLE_SECONDS):
                if self._watchers:
                    await self._look()
                for watcher in list(self._watchers):
                    await watcher.settled.wait()

    async def watch(self) -> AsyncGenerator[list[str]]:
        """Documents that lost a reference, look by look, also without any; the first at once."""
        with self._watching() as watcher:
            assert self._ready is not None
            await asyncio.shield(self._ready)
            yield []
            while True:
                yield await watcher.news()

    @contextmanager
    def _watching(self) -> Iterator[Watcher]:
        if self._draining:
            raise Draining
        watcher = Watcher()
        self._watchers.add(watcher)
        if self._following is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._following = asyncio.create_task(self._follow(self._ready))
        metrics.revocation_watchers.set(len(self._watchers))
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
            metrics.revocation_watchers.set(len(self._watchers))
            if not self._watchers and self._following is not None:
                self._following.cancel()
                self._following = None

    async def _follow(self, ready: "asyncio.Future[None]") -> None:
        """Look again and again from the newest number on, until the last watcher has gone."""
        try:
            self._seen = await self._store.get_newest_revocation()
        except DependencyDown as error:
            self._following = None  # the next watcher tries anew
            ready.set_exception(error)
            return
        ready.set_result(None)
        async with periodic("listen_revocations", every=LISTEN_EVERY, run_once=self._listen):
            await self._look_forever()

    async def _look_forever(self) -> None:
        clock = asyncio.get_running_loop().time
        looked_at = clock()
        while True:
            try:
                await self._look()
                looked_at = clock()
            except DependencyDown as error:
                # Nothing is sent meanwhile: silence tells watchers not to trust what they know.
                log.warning("revocations_not_followed", reason=error.reason)
                if clock() - looked_at > PATIENCE_SECONDS:
                    self._fail_all()
            await self._pause()

    async def _look(self) -> None:
        async with self._looking:
            found = await self._store.list_revocations(after=self._seen, most=LOOK_AT_MOST)
            hashes = [revocation.pdf_hash for revocation in found]
            for watcher in self._watchers:
                watcher.tell(hashes)
            if found:
                self._seen = found[-1].revocation_id
        if len(found) == LOOK_AT_MOST:
            self._hint.set()  # there is more

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await self._hint.wait()
        self._hint.clear()

    def _fail_all(self) -> None:
        for watcher in self._watchers:
            watcher.fail(FellBehind())

    async def _listen(self) -> None:
        await self._store.listen(self._hint.set)

    async def _prune(self) -> None:
        await self._store.prune_revocations(older_than=KEPT)

    async def _stop_following(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
