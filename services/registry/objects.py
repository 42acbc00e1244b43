"""Keeps documents' bytes under their hash, in a folder or a bucket; only importer of obstore."""

import asyncio
import contextlib
import os
import re
import tempfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

import obstore
import structlog
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from services.registry import folder
from services.runtime.errors import DependencyDown
from services.runtime.server import CannotStart
from services.runtime.single_flight import SingleFlight

log = structlog.get_logger()

BUCKET_SCHEMES = frozenset({"s3", "gs", "memory"})
DOCUMENT_KEY = re.compile(r"[0-9a-f]{2}/([0-9a-f]{64})\.pdf")
UNFINISHED_SECONDS = 3600.0
PIECE_BYTES = 1 << 20


class NoSuchSource(Exception):
    """There are no bytes under this key."""


class StoredObject(NamedTuple):
    """Bytes that the store has for a document, whether or not anybody knows the document."""

    pdf_hash: str
    size_bytes: int


class Objects(Protocol):
    """Where the outside world begins for documents' bytes."""

    async def put(self, pdf_hash: str, source: IO[bytes], *, size_bytes: int) -> None:
        """Keep the bytes; visible whole or not at all. Repeating it changes nothing."""

    def opened(self, pdf_hash: str) -> AbstractAsyncContextManager[int]:
        """A descriptor for reading the bytes, closed at the end of the block."""

    def opened_source(self, source_key: str) -> AbstractAsyncContextManager[int]:
        """The same for bytes that were put here by somebody else, under a key of theirs."""

    async def size(self, pdf_hash: str) -> int | None:
        """How many bytes there are; None when there are none."""

    async def remove(self, pdf_hash: str) -> None:
        """Forget the bytes. Repeating it changes nothing."""

    def list_objects(self) -> AsyncIterator[list[StoredObject]]:
        """All bytes under hashes, in pieces."""

    async def remove_unfinished(self) -> int:
        """Remove what crashes have left; tell how many."""


class FolderObjects:
    """Bytes in a folder of this machine."""

    def __init__(self, path: Path) -> None:
        self._folder = path
        self._store = LocalStore(path)

    async def put(self, pdf_hash: str, source: IO[bytes], *, size_bytes: int) -> None:
        if await self.size(pdf_hash) == size_bytes:
            return
        with _store_trouble():
            # The database is about to say that we have it: that must stay true after a power cut.
            await asyncio.to_thread(folder.publish, source.fileno(), self._folder / key(pdf_hash))

    @asynccontextmanager
    async def opened(self, pdf_hash: str) -> AsyncIterator[int]:
        with _descriptor(self._folder / key(pdf_hash)) as descriptor:
            yield descriptor

    @asynccontextmanager
    async def opened_source(self, source_key: str) -> AsyncIterator[int]:
        path = (self._folder / source_key).resolve()
        if not path.is_relative_to(self._folder.resolve()) or path.is_dir():
            raise NoSuchSource
        with _missing_source(), _descriptor(path) as descriptor:
            yield descriptor

    async def size(self, pdf_hash: str) -> int | None:
        return await _size(self._store, key(pdf_hash))

    async def remove(self, pdf_hash: str) -> None:
        await _remove(self._store, pdf_hash)

    def list_objects(self) -> AsyncIterator[list[StoredObject]]:
        return _list_objects(self._store)

    async def remove_unfinished(self) -> int:
        return await asyncio.to_thread(
            folder.remove_unfinished, self._folder, older_than_seconds=UNFINISHED_SECONDS
        )


class BucketObjects:
    """Bytes in a bucket; what is read is kept in a local folder for the next reader."""

    def __init__(self, store: ObjectStore, *, copies: Path, kept: int = 64) -> None:
        self._store = store
        self._folder = copies
        self._kept = kept
        self._local: OrderedDict[str, Path] = OrderedDict()
        self._fetching: SingleFlight[str, Path] = SingleFlight()

    async def put(self, pdf_hash: str, source: IO[bytes], *, size_bytes: int) -> None:
        await _put(self._store, pdf_hash, source, size_bytes)

    @asynccontextmanager
    async def opened(self, pdf_hash: str) -> AsyncIterator[int]:
        path = self._local.get(pdf_hash)
        if path is None:
            path = await self._fetching.run(pdf_hash, lambda: self._fetch_document(pdf_hash))
        # Opened before anything else can run: forgetting the file later does not disturb a reader.
        with _descriptor(path) as descriptor:
            self._local.move_to_end(pdf_hash)
            yield descriptor

    @asynccontextmanager
    async def opened_source(self, source_key: str) -> AsyncIterator[int]:
        with _missing_source():
            path = await self._fetch(source_key)
        try:
            with _descriptor(path) as descriptor:
                yield descriptor
        finally:
            path.unlink(missing_ok=True)

    async def size(self, pdf_hash: str) -> int | None:
        return await _size(self._store, key(pdf_hash))

    async def remove(self, pdf_hash: str) -> None:
        await _remove(self._store, pdf_hash)
        if path := self._local.pop(pdf_hash, None):
            path.unlink(missing_ok=True)

    def list_objects(self) -> AsyncIterator[list[StoredObject]]:
        return _list_objects(self._store)

    async def remove_unfinished(self) -> int:
        return 0  # a bucket shows nothing before it is whole

    async def _fetch_document(self, pdf_hash: str) -> Path:
        path = await self._fetch(key(pdf_hash))
        self._remember(pdf_hash, path)
        return path

    async def _fetch(self, object_key: str) -> Path:
        with _new_file(self._folder) as (path, target), _store_trouble():
            answer = await obstore.get_async(self._store, object_key)
            async for piece in answer.stream():
                await asyncio.to_thread(target.write, piece)
        return path

    def _remember(self, pdf_hash: str, path: Path) -> None:
        self._local[pdf_hash] = path
        while len(self._local) > self._kept:
            _, oldest = self._local.popitem(last=False)
            oldest.unlink(missing_ok=True)


@asynccontextmanager
async def open_objects(url: str, *, spool_dir: Path) -> AsyncIterator[Objects]:
    """The object store a URL names: `file:///folder`, a plain path, `s3://bucket/…`, `gs://bucket/…`."""
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        yield FolderObjects(_made_folder(Path(unquote(parts.path))))
        return
    if parts.scheme not in BUCKET_SCHEMES:
        raise CannotStart("GLOSSA_STORE_URL must be a folder, file://, s3:// or gs://")
    try:
        store = from_url(url)
    except (BaseError, ValueError):
        raise CannotStart("GLOSSA_STORE_URL names no bucket that can be used") from None
    with folder.own_folder(spool_dir, "copies-") as copies:
        yield BucketObjects(store, copies=copies)


async def pieces(descriptor: int) -> AsyncIterator[bytes]:
    """The bytes behind a descriptor, read away from the event loop."""
    place = 0
    while True:
        with _store_trouble():
            piece = await asyncio.to_thread(os.pread, descriptor, PIECE_BYTES, place)
        if not piece:
            return
        yield piece
        place += len(piece)


def key(pdf_hash: str) -> str:
    """Where a document's bytes are; two letters keep folders short."""
    return f"{pdf_hash[:2]}/{pdf_hash}.pdf"


async def _put(store: ObjectStore, pdf_hash: str, source: IO[bytes], size_bytes: int) -> None:
    if await _size(store, key(pdf_hash)) == size_bytes:
        return
    with _store_trouble():
        source.seek(0)
        # Two parts at a time: by default twelve of them would be held in memory.
        await obstore.put_async(store, key(pdf_hash), source, max_concurrency=2)


async def _size(store: ObjectStore, path: str) -> int | None:
    with _store_trouble(), contextlib.suppress(FileNotFoundError):
        return (await obstore.head_async(store, path))["size"]
    return None


async def _remove(store: ObjectStore, pdf_hash: str) -> None:
    with _store_trouble(), contextlib.suppress(FileNotFoundError):
        await obstore.delete_async(store, key(pdf_hash))


async def _list_objects(store: ObjectStore) -> AsyncIterator[list[StoredObject]]:
    listing = obstore.list(store, chunk_size=1000)
    while True:
        with _store_trouble():
            piece = await anext(listing, None)
        if piece is None:
            return
        found = ((DOCUMENT_KEY.fullmatch(meta["path"]), meta["size"]) for meta in piece)
        yield [StoredObject(match[1], size) for match, size in found if match]


@contextmanager
def _store_trouble() -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError) as error:
        log.warning("object_store_trouble", error=type(error).__name__)
        raise DependencyDown(
            "the object store cannot be reached or has lost a document",
            reason="OBJECT_STORE_UNAVAILABLE",
        ) from error


@contextmanager
def _missing_source() -> Iterator[None]:
    """Tell bytes that are not there apart from a store that is not."""
    try:
        yield
    except DependencyDown as trouble:
        if isinstance(trouble.__cause__, FileNotFoundError):
            raise NoSuchSource from trouble
        raise


@contextmanager
def _descriptor(path: Path) -> Iterator[int]:
    with _store_trouble():
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _new_file(copies: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """A file that stays only if the block ends well."""
    number, name = tempfile.mkstemp(prefix="fetched-", dir=copies)
    try:
        with os.fdopen(number, "wb") as target:
            yield Path(name), target
    except BaseException:
        Path(name).unlink()
        raise


def _made_folder(path: Path) -> Path:
    """Documents are nobody else's business: a folder we make is closed to other accounts."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path.absolute()
