"""Keeps documents' bytes under their hash, in a folder or a bucket; only importer of obstore."""

import asyncio
import contextlib
import os
import tempfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import unquote, urlsplit

import obstore
import structlog
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from services.runtime.errors import DependencyDown
from services.runtime.server import CannotStart
from services.runtime.single_flight import SingleFlight

log = structlog.get_logger()

BUCKET_SCHEMES = frozenset({"s3", "gs", "memory"})


class Objects(Protocol):
    """Where the outside world begins for documents' bytes."""

    async def put(self, pdf_hash: str, source: IO[bytes], *, size_bytes: int) -> None:
        """Keep the bytes; visible whole or not at all. Repeating it changes nothing."""

    def opened(self, pdf_hash: str) -> AbstractAsyncContextManager[int]:
        """A descriptor for reading the bytes, closed at the end of the block."""


class FolderObjects:
    """Bytes in a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store = LocalStore(folder)

    async def put(self, pdf_hash: str, source: IO[bytes], *, size_bytes: int) -> None:
        await _put(self._store, pdf_hash, source, size_bytes)
        # The database is about to say that we have it: that must stay true after a power cut.
        await asyncio.to_thread(_flush, self._folder / key(pdf_hash))

    @asynccontextmanager
    async def opened(self, pdf_hash: str) -> AsyncIterator[int]:
        with _descriptor(self._folder / key(pdf_hash)) as descriptor:
            yield descriptor


class BucketObjects:
    """Bytes in a bucket; what is read is kept in a local folder for the next reader."""

    def __init__(self, store: ObjectStore, *, folder: Path, kept: int = 64) -> None:
        self._store = store
        self._folder = folder
        self._kept = kept
        self._local: OrderedDict[str, Path] = OrderedDict()
        self._fetching: SingleFlight[str, Path] = SingleFlight()

    async def put(self, pdf_hash: str, source: IO[bytes], *, size_bytes: int) -> None:
        await _put(self._store, pdf_hash, source, size_bytes)

    @asynccontextmanager
    async def opened(self, pdf_hash: str) -> AsyncIterator[int]:
        path = self._local.get(pdf_hash)
        if path is None:
            path = await self._fetching.run(pdf_hash, lambda: self._fetch(pdf_hash))
        # Opened before anything else can run: forgetting the file later does not disturb a reader.
        with _descriptor(path) as descriptor:
            self._local.move_to_end(pdf_hash)
            yield descriptor

    async def _fetch(self, pdf_hash: str) -> Path:
        with _new_file(self._folder) as (path, target), _store_trouble():
            answer = await obstore.get_async(self._store, key(pdf_hash))
            async for piece in answer.stream():
                await asyncio.to_thread(target.write, piece)
        self._remember(pdf_hash, path)
        return path

    def _remember(self, pdf_hash: str, path: Path) -> None:
        self._local[pdf_hash] = path
        while len(self._local) > self._kept:
            _, oldest = self._local.popitem(last=False)
            oldest.unlink(missing_ok=True)

    def forget(self) -> None:
        """Remove every local copy."""
        while self._local:
            self._local.popitem()[1].unlink(missing_ok=True)


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
        bucket = BucketObjects(from_url(url), folder=spool_dir)
    except (BaseError, ValueError):
        raise CannotStart("GLOSSA_STORE_URL names no bucket that can be used") from None
    try:
        yield bucket
    finally:
        bucket.forget()


def key(pdf_hash: str) -> str:
    """Where a document's bytes are; two letters keep folders short."""
    return f"{pdf_hash[:2]}/{pdf_hash}.pdf"


async def _put(store: ObjectStore, pdf_hash: str, source: IO[bytes], size_bytes: int) -> None:
    with _store_trouble():
        if await _size(store, key(pdf_hash)) == size_bytes:
            return
        source.seek(0)
        # Two parts at a time: by default twelve of them would be held in memory.
        await obstore.put_async(store, key(pdf_hash), source, max_concurrency=2)


async def _size(store: ObjectStore, path: str) -> int | None:
    with contextlib.suppress(FileNotFoundError):
        return (await obstore.head_async(store, path))["size"]
    return None


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
def _descriptor(path: Path) -> Iterator[int]:
    with _store_trouble():
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _new_file(folder: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """A file that stays only if the block ends well."""
    number, name = tempfile.mkstemp(prefix="fetched-", dir=folder)
    try:
        with os.fdopen(number, "wb") as target:
            yield Path(name), target
    except BaseException:
        Path(name).unlink()
        raise


def _made_folder(folder: Path) -> Path:
    """Documents are nobody else's business: a folder we make is closed to other accounts."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder.absolute()


def _flush(path: Path) -> None:
    for name in (path, path.parent):
        with _descriptor(name) as descriptor:
            os.fsync(descriptor)
