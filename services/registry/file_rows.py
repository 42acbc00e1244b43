"""Rows of files as values; what the stores that speak of files share."""

from typing import Any, Protocol

from services.registry.domain import Callback, Document, File, Owner


class Row(Protocol):
    """As the driver gives it."""

    def __getitem__(self, column: str) -> Any: ...


def owner_of(row: Row) -> Owner:
    """Who a file belongs to."""
    return Owner(user_id=row["user_id"], visitor_session_id=row["visitor_session_id"])


def file_of(row: Row) -> File:
    """The file, with its newest callback."""
    callback = None
    if row["url"] is not None:
        callback = Callback(
            url=row["url"],
            state=row["state"],
            attempts=row["attempts"],
            last_error=row["last_error"] or "",
        )
    return File(
        file_id=row["file_id"],
        pdf_hash=row["content_hash"],
        filename=row["filename"],
        size_bytes=row["size_bytes"],
        created_at=row["created_at"],
        forced=row["forced"],
        callback=callback,
    )


def document_of(row: Row) -> Document:
    """The document a file refers to."""
    return Document(
        pdf_hash=row["content_hash"],
        size_bytes=row["document_size_bytes"],
        total_pages=row["total_pages"],
        reference_count=row["reference_count"],
        processed_at=row["processed_at"],
    )
