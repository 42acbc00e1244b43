"""Bytes off the wire: hashed whole, never all in memory, and a full disk has a name."""

import asyncio
import ctypes
import hashlib
import mmap
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.registry.errors import FileTooLarge
from services.registry.folder import DISK_BLOCK_BYTES, go_straight, write_out
from services.registry.receive import PIECE_BYTES, SpoolUnavailable, receive


async def pieces(*sizes: int) -> AsyncIterator[bytes]:
    for number, size in enumerate(sizes):
        yield bytes([number % 256]) * size


@pytest.mark.parametrize(
    "sizes",
    [
        (),
        (0,),
        (1,),
        (PIECE_BYTES,),
        (PIECE_BYTES - 1, 1, 1),
        (7,) * 50,
        (PIECE_BYTES + 1,) * 3,
        (PIECE_BYTES * 5,),
        (PIECE_BYTES // 3,) * 20,
    ],
    ids=str,
)
async def test_what_comes_is_hashed_and_kept_in_order(
    sizes: tuple[int, ...], tmp_path: Path
) -> None:
    whole = b"".join([piece async for piece in pieces(*sizes)])
    with (tmp_path / "spool").open("w+b", buffering=0) as spool:
        pdf_hash, size_bytes = await receive(pieces(*sizes), spool, limit_bytes=1 << 30)
        spool.seek(0)
        assert spool.read() == whole
    assert (pdf_hash, size_bytes) == (hashlib.sha256(whole).hexdigest(), len(whole))


async def test_the_limit_is_told_with_the_first_byte_above_it() -> None:
    taken = []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            taken.append(1)
            yield bytes(1000)

    with tempfile.TemporaryFile(buffering=0) as spool:
        with pytest.raises(FileTooLarge):
            await receive(endless(), spool, limit_bytes=5000)
        assert len(taken) == 6
        assert (await receive(pieces(5000), spool, limit_bytes=5000))[1] == 5000


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
async def test_a_full_disk_is_our_trouble() -> None:
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(SpoolUnavailable) as told:  # noqa: ASYNC230, PTH123
        await receive(pieces(10, 10), full, limit_bytes=100)
    assert (told.value.code, told.value.reason) == ("UNAVAILABLE", "OBJECT_STORE_UNAVAILABLE")


async def test_an_uploader_that_goes_away_leaves_nobody_writing(tmp_path: Path) -> None:
    reader, writer = os.pipe()  # a disk that takes nothing more until somebody reads

    async def silent() -> AsyncIterator[bytes]:
        yield bytes(PIECE_BYTES + 1)  # one more than is kept back
        arrived.set()
        await asyncio.Event().wait()

    arrived = asyncio.Event()
    with os.fdopen(writer, "wb", buffering=0) as spool:
        receiving = asyncio.ensure_future(receive(silent(), spool, limit_bytes=1 << 30))
        await arrived.wait()
        receiving.cancel()
        drained = asyncio.ensure_future(asyncio.to_thread(_drain, reader))
        with pytest.raises(asyncio.CancelledError):
            await receiving
    assert await drained == PIECE_BYTES


async def test_what_a_disk_does_not_take_straight_goes_the_usual_way(tmp_path: Path) -> None:
    content = os.urandom(3 * DISK_BLOCK_BYTES)
    with (tmp_path / "spool").open("w+b", buffering=0) as spool:
        write_out(spool.fileno(), memoryview(b"x" + content)[1:])  # begins where no disk likes it
        write_out(spool.fileno(), memoryview(b"the end"))
        spool.seek(0)
        assert spool.read() == content + b"the end"


def test_uploads_on_their_way_stay_out_of_the_page_cache(tmp_path: Path) -> None:
    piece = memoryview(mmap.mmap(-1, PIECE_BYTES))
    with (tmp_path / "spool").open("w+b", buffering=0) as spool:
        if not go_straight(spool.fileno(), True):
            pytest.skip("this file system has no way past the page cache")
        write_out(spool.fileno(), piece)
        assert resident_pages(spool.fileno(), PIECE_BYTES) == 0
        go_straight(spool.fileno(), False)
        spool.seek(0)
        assert spool.read() == bytes(PIECE_BYTES)


def resident_pages(descriptor: int, size_bytes: int) -> int:
    """How many pages of a file are in memory, as the kernel tells."""
    libc = ctypes.CDLL(None)
    pages = (ctypes.c_ubyte * -(-size_bytes // mmap.PAGESIZE))()
    with mmap.mmap(descriptor, size_bytes) as mapped:
        start = ctypes.c_char.from_buffer(mapped)
        assert libc.mincore(ctypes.byref(start), ctypes.c_size_t(size_bytes), pages) == 0
        del start
    return sum(page & 1 for page in pages)


def _drain(reader: int) -> int:
    with os.fdopen(reader, "rb") as pipe:
        return len(pipe.read())
