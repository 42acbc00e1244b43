"""Bytes off the wire: hashed whole, never all in memory, and a full disk has a name."""

import asyncio
import hashlib
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.registry.errors import FileTooLarge
from services.registry.receive import BATCH_BYTES, SpoolUnavailable, receive


async def pieces(*sizes: int) -> AsyncIterator[bytes]:
    for number, size in enumerate(sizes):
        yield bytes([number % 256]) * size


@pytest.mark.parametrize(
    "sizes",
    [(), (0,), (1,), (BATCH_BYTES,), (BATCH_BYTES - 1, 1, 1), (7,) * 50, (BATCH_BYTES + 1,) * 3],
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

    with pytest.raises(FileTooLarge):
        await receive(endless(), io.BytesIO(), limit_bytes=5000)
    assert len(taken) == 6
    assert (await receive(pieces(5000), io.BytesIO(), limit_bytes=5000))[1] == 5000


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
async def test_a_full_disk_is_our_trouble() -> None:
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(SpoolUnavailable) as told:  # noqa: ASYNC230, PTH123
        await receive(pieces(10, 10), full, limit_bytes=100)
    assert (told.value.code, told.value.reason) == ("UNAVAILABLE", "OBJECT_STORE_UNAVAILABLE")


async def test_an_uploader_that_goes_away_leaves_nobody_writing(tmp_path: Path) -> None:
    reader, writer = os.pipe()  # a disk that takes nothing more until somebody reads

    async def silent() -> AsyncIterator[bytes]:
        yield bytes(BATCH_BYTES)
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
    assert await drained == BATCH_BYTES


def _drain(reader: int) -> int:
    with os.fdopen(reader, "rb") as pipe:
        return len(pipe.read())
