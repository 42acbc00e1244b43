"""Looks at every page of a new document ahead of those who will ask, within a budget."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

import structlog

from services.registry import metrics
from services.registry.domain import KnownPages
from services.registry.errors import PdfError, PdfReaderLost
from services.registry.pages import Pages
from services.registry.pdf_answers import Seen
from services.registry.process_store import Claimed, ProcessStore
from services.runtime.errors import DependencyDown

log = structlog.get_logger()

# Few enough that somebody who asks for a page meanwhile hardly waits.
PAGES_AT_ONCE = 16
CLAIM = timedelta(minutes=5)
BUDGET_SECONDS = 120.0
# Pages that cost a child its life; whoever wants more of such a document asks page by page.
MOST_BROKEN = 3
MOST_ATTEMPTS = 3
# How long a document waits for a store that is away; that is not its fault and costs no attempt.
PUT_OFF = timedelta(seconds=30)


@dataclass(frozen=True, kw_only=True)
class Processing:
    """One document at a time in each replica; a crash leaves it to another."""

    store: ProcessStore
    pages: Pages
    # Called when a document has been processed: somebody may wait to be told.
    on_processed: Callable[[], None]

    async def run_once(self) -> None:
        """Process until nothing waits."""
        while claimed := await self.store.claim_document(lasting=CLAIM):
            try:
                whole = await self._look_at_all(claimed)
            except PdfReaderLost as error:
                # It may be this document that the reader dies of: the attempt counts.
                log.warning("document_not_processed", reason=error.reason)
                whole = False
            except DependencyDown as error:
                log.warning("document_not_processed", reason=error.reason)
                metrics.put_off_documents.inc()
                await self.store.put_off(claimed, lasting=PUT_OFF)
                return  # whatever is away is away for the others too
            if whole or claimed.processing_attempts >= MOST_ATTEMPTS:
                await self.store.end_processing(claimed.pdf_hash)
                metrics.processed_documents.inc()
                self.on_processed()

    async def _look_at_all(self, claimed: Claimed) -> bool:
        """False when a page could not be looked at for reasons that may pass."""
        clock = asyncio.get_running_loop().time
        until, broken = clock() + BUDGET_SECONDS, 0
        while clock() < until and broken < MOST_BROKEN:
            unknown = await self.store.list_unknown_pages(claimed.pdf_hash, most=PAGES_AT_ONCE)
            if not unknown:
                break
            known = KnownPages(pdf_hash=claimed.pdf_hash, total_pages=claimed.total_pages, pages={})
            seen = await self.pages.complete(known, unknown)
            if any(isinstance(one, PdfError) and not one.lasting for one in seen.values()):
                return False
            broken += count_costly(seen)
        return True


def count_costly(seen: Mapping[int, Seen]) -> int:
    """Pages that were given up for what they cost, rather than for being damaged."""
    costly = {"PDF_TIMEOUT", "PDF_TOO_COMPLEX"}
    return sum(isinstance(one, PdfError) and one.reason in costly for one in seen.values())
