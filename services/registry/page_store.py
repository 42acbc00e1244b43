"""SQL about pages: who may see them, and what is known of them."""

from collections.abc import Mapping
from uuid import UUID

import asyncpg

from services.registry.domain import BrokenPage, KnownPage, KnownPages, Owner, PageMetadata
from services.registry.errors import FileNotFound
from services.runtime.database import Database

# Access, size of the document and what is known of some pages, in one look.
RESOLVE_FILE = """
SELECT
    document.pdf_hash, document.total_pages, page.page, page.word_count, page.images_count,
    page.is_scanned, page.has_hidden_text, page.fingerprint, page.error_reason
FROM registry.files AS file
INNER JOIN registry.canonical_documents AS document ON document.pdf_hash = file.content_hash
LEFT JOIN registry.canonical_page_metadata AS page
    ON page.pdf_hash = document.pdf_hash AND page.page = any($4::integer[])
WHERE file.file_id = $1 AND (file.user_id = $2 OR file.visitor_session_id = $3)
"""

# An owner may hold a document several times, by force.
RESOLVE_HASH = """
SELECT
    document.pdf_hash, document.total_pages, page.page, page.word_count, page.images_count,
    page.is_scanned, page.has_hidden_text, page.fingerprint, page.error_reason
FROM registry.canonical_documents AS document
LEFT JOIN registry.canonical_page_metadata AS page
    ON page.pdf_hash = document.pdf_hash AND page.page = any($4::integer[])
WHERE
    document.pdf_hash = (
        SELECT file.content_hash
        FROM registry.files AS file
        WHERE file.content_hash = $1 AND (file.user_id = $2 OR file.visitor_session_id = $3)
        LIMIT 1
    )
"""

FIND_PAGES = """
SELECT
    document.pdf_hash, document.total_pages, page.page, page.word_count, page.images_count,
    page.is_scanned, page.has_hidden_text, page.fingerprint, page.error_reason
FROM registry.canonical_documents AS document
LEFT JOIN registry.canonical_page_metadata AS page
    ON page.pdf_hash = document.pdf_hash AND page.page = any($2::integer[])
WHERE document.pdf_hash = $1
"""

# From the document, so that nothing is added for one that has been collected meanwhile.
ADD_PAGES = """
INSERT INTO registry.canonical_page_metadata
    (
        pdf_hash, page, word_count, images_count, is_scanned, has_hidden_text, fingerprint,
        error_reason
    )
SELECT document.pdf_hash, seen.*
FROM registry.canonical_documents AS document
CROSS JOIN unnest(
    $2::integer[], $3::integer[], $4::integer[], $5::boolean[], $6::boolean[], $7::text[],
    $8::text[]
) AS seen
WHERE document.pdf_hash = $1
ON CONFLICT (pdf_hash, page) DO NOTHING
"""


class PageStore:
    """What is known of pages."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def resolve(self, owner: Owner, target: UUID | str, pages: list[int]) -> KnownPages:
        """Pages of one of the owner's files, or of a document the owner holds."""
        statement = RESOLVE_FILE if isinstance(target, UUID) else RESOLVE_HASH
        async with self._database.connection() as connection:
            rows = await connection.fetch(
                statement, target, owner.user_id, owner.visitor_session_id, pages
            )
        if not rows:
            raise FileNotFound
        return _known_pages(rows)

    async def find_pages(self, pdf_hash: str, pages: list[int]) -> KnownPages | None:
        """Pages of any document; for callers that have been let in already."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(FIND_PAGES, pdf_hash, pages)
        return _known_pages(rows) if rows else None

    async def add_pages(self, pdf_hash: str, pages: Mapping[int, KnownPage]) -> None:
        """Keep what was detected, broken pages too; the first to say it wins."""
        columns = zip(*(_values(page, known) for page, known in pages.items()), strict=True)
        async with self._database.connection() as connection:
            await connection.execute(ADD_PAGES, pdf_hash, *columns)


def _values(page: int, known: KnownPage) -> tuple[object, ...]:
    if isinstance(known, BrokenPage):
        return (page, None, None, None, None, None, known.reason)
    found = (known.word_count, known.images_count, known.is_scanned, known.has_hidden_text)
    return (page, *found, known.fingerprint, None)


def _known_pages(rows: list[asyncpg.Record]) -> KnownPages:
    return KnownPages(
        pdf_hash=rows[0]["pdf_hash"],
        total_pages=rows[0]["total_pages"],
        pages={row["page"]: _known(row) for row in rows if row["page"] is not None},
    )


def _known(row: asyncpg.Record) -> KnownPage:
    if row["error_reason"] is not None:
        return BrokenPage(reason=row["error_reason"])
    return PageMetadata(
        word_count=row["word_count"],
        images_count=row["images_count"],
        is_scanned=row["is_scanned"],
        has_hidden_text=row["has_hidden_text"],
        fingerprint=row["fingerprint"],
    )
