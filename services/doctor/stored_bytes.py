"""Holds the object store against the documents: no bytes are missing, none are left over.

Asked here rather than of the Registry's CheckReferenceHealth: it works while the Registry is down,
finds bytes that nobody knows of too, and needs no right to repair anything.
"""

import hashlib
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import asyncpg

from services.doctor.invariant import Invariant
from services.doctor.verdict import CannotCheck, Check, Kind, Row, Status, Unfit
from services.registry.objects import Objects, open_objects, pieces

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]
else:
    Connection = asyncpg.Connection

EXAMPLES = 5
LIST_DOCUMENTS = "SELECT pdf_hash, size_bytes, reference_count FROM registry.canonical_documents"
FIND_DOCUMENTS = LIST_DOCUMENTS + " WHERE pdf_hash = ANY($1::text[])"

NONE_MISSING = Invariant(
    name="stored/no_missing_bytes",
    promise="Every document that somebody holds has all its bytes in the object store.",
    advice="whoever uploads the document again mends it; restore the rest from a backup.",
    sql="",
)
NONE_LEFT_OVER = Invariant(
    name="stored/no_orphan_bytes",
    promise="Whatever the object store keeps under a hash is a document that the Registry knows.",
    advice="`glossa gc` removes them.",
    sql="",
)
STORED = (NONE_MISSING, NONE_LEFT_OVER)
_Known = Mapping[str, tuple[int, int]]


def store_folder(store_url: str) -> Path | None:
    """The folder that a store is, if it is one."""
    parts = urlsplit(store_url)
    return Path(unquote(parts.path)) if parts.scheme in {"", "file"} else None


async def open_store(store_url: str, stack: AsyncExitStack) -> Objects:
    """The store as the Registry opens it; a folder that is not there is not made."""
    folder = store_folder(store_url)
    if folder is not None and not folder.is_dir():
        raise CannotCheck(
            f"there is no folder {folder}", next_step="start the suite, or set GLOSSA_STORE_URL"
        )
    spool = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="glossa-doctor-")))
    return await stack.enter_async_context(open_objects(store_url, spool_dir=spool))


async def examine_bytes(connection: "Connection", objects: Objects) -> list[Check]:
    """What is missing and what is left over. Who comes and goes meanwhile is looked at twice."""
    began = time.perf_counter()
    stored = {
        each.pdf_hash: each.size_bytes async for piece in objects.list_objects() for each in piece
    }
    known = _known(await connection.fetch(LIST_DOCUMENTS))
    missing = [
        pdf_hash
        for pdf_hash, (size, held) in known.items()
        if held and stored.get(pdf_hash) != size
    ]
    orphans = [pdf_hash for pdf_hash in stored if pdf_hash not in known]
    now = _known(await connection.fetch(FIND_DOCUMENTS, missing + orphans))
    lost = [row for pdf_hash in missing if (row := await _lost(objects, pdf_hash, now))]
    left = [row for pdf_hash in orphans if (row := await _left_over(objects, pdf_hash, now))]
    seconds = time.perf_counter() - began
    return [_check(NONE_MISSING, lost, seconds), _check(NONE_LEFT_OVER, left, seconds)]


async def round_trip(objects: Objects) -> None:
    """Put, get and delete a few bytes, under a hash of their own."""
    content = b"glossa doctor " + secrets.token_bytes(16)
    pdf_hash = hashlib.sha256(content).hexdigest()
    with tempfile.TemporaryFile() as source:
        source.write(content)
        source.flush()
        try:
            await objects.put(pdf_hash, source, size_bytes=len(content))
            async with objects.opened(pdf_hash) as descriptor:
                read = b"".join([piece async for piece in pieces(descriptor)])
        finally:
            await objects.remove(pdf_hash)
    if read != content or await objects.size(pdf_hash) is not None:
        raise Unfit(
            "what was put is not what was got, or could not be deleted",
            next_step="does anybody else write to this store?",
        )


def _known(rows: Sequence[asyncpg.Record]) -> _Known:
    return {row["pdf_hash"]: (row["size_bytes"], row["reference_count"]) for row in rows}


async def _lost(objects: Objects, pdf_hash: str, now: _Known) -> Row | None:
    size, held = now.get(pdf_hash, (0, 0))
    found = await objects.size(pdf_hash)
    if not held or found == size:
        return None
    return {"pdf_hash": pdf_hash, "size_bytes": size, "stored_bytes": found}


async def _left_over(objects: Objects, pdf_hash: str, now: _Known) -> Row | None:
    found = await objects.size(pdf_hash)
    if pdf_hash in now or found is None:
        return None
    return {"pdf_hash": pdf_hash, "stored_bytes": found}


def _check(invariant: Invariant, rows: Sequence[Row], seconds: float) -> Check:
    return Check(
        name=invariant.name,
        kind=Kind.INVARIANT,
        promise=invariant.promise,
        status=Status.VIOLATED if rows else Status.SOUND,
        advice=invariant.advice,
        rows=len(rows),
        examples=rows[:EXAMPLES],
        seconds=seconds,
    )
