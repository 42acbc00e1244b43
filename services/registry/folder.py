"""Files on this machine: spooled without a name, published whole or not at all."""

import errno
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

# The most that a disk asks for; memory is aligned to it as well.
DISK_BLOCK_BYTES = 4096
UNFINISHED = "."  # how names begin that nobody has published yet


@contextmanager
def spool_file(folder: Path) -> Iterator[IO[bytes]]:
    """A file without a name: gone with us, whatever happens, unless it is published."""
    try:
        # Not as tempfile does it: its files can never be given a name.
        number = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (OSError, AttributeError):  # not everywhere
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            yield file
        return
    with os.fdopen(number, "r+b", buffering=0) as file:
        yield file


@contextmanager
def own_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A folder for this process alone, gone with it; one that was killed leaves it to the next."""
    with locked(parent):  # so that nobody takes our folder for one of the dead
        for left in parent.glob(f"{prefix}*"):
            with suppress(BlockingIOError), locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB):
                shutil.rmtree(left)
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        holding = ExitStack()
        holding.enter_context(locked(path))
    with holding:
        try:
            yield path
        finally:
            shutil.rmtree(path)


@contextmanager
def locked(folder: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a folder against other processes; the kernel lets go for us if we are killed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def write_out(descriptor: int, content: memoryview) -> None:
    """Write all of it; whole blocks straight to the disk, past the page cache.

    So they cost no copy and leave nothing for fsync, and an upload of 300 MB does not push
    everybody else's files out of memory.
    """
    straight = len(content) % DISK_BLOCK_BYTES == 0 and go_straight(descriptor, True)
    while content:
        try:
            content = content[os.write(descriptor, content) :]
        except OSError as error:
            if not straight or error.errno != errno.EINVAL:
                raise
            straight = go_straight(descriptor, False)  # this disk wants it otherwise
    if straight:
        go_straight(descriptor, False)


def go_straight(descriptor: int, wanted: bool) -> bool:
    """Whether what is written from now on goes past the page cache."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # to a pipe it would mean something else
        return False
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    direct = getattr(os, "O_DIRECT", 0)  # not everywhere
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | direct if wanted else flags & ~direct)
    except OSError:  # not every file system
        return False
    return wanted and direct != 0


def publish(source: int, target: Path) -> None:
    """Make the bytes of a descriptor a file, all at once and safe from a power cut."""
    target.parent.mkdir(mode=0o700, exist_ok=True)
    unfinished = target.with_name(f"{UNFINISHED}{target.name}.{secrets.token_hex(8)}")
    try:
        give_name(source, unfinished)
        flush(unfinished)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    flush(target.parent)


def give_name(source: int, target: Path) -> None:
    """A name for a spooled file if it has the same file system, else a copy of it."""
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Python follows the link behind a descriptor only if it is given a folder as well.
        os.link(f"/proc/self/fd/{source}", target.name, dst_dir_fd=folder, follow_symlinks=True)
    except OSError:
        with os.fdopen(os.dup(source), "rb", buffering=0) as content, target.open("xb") as copy:
            target.chmod(0o600)
            content.seek(0)
            shutil.copyfileobj(content, copy, 1 << 20)
    finally:
        os.close(folder)


def flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unfinished(folder: Path, *, older_than_seconds: float) -> int:
    """Remove what a crash left between two steps of `publish`; tell how many."""
    oldest = time.time() - older_than_seconds
    left = [path for path in folder.glob(f"*/{UNFINISHED}*") if modified(path) < oldest]
    for path in left:
        path.unlink(missing_ok=True)
    return len(left)


def modified(path: Path) -> float:
    """When a file was last written; one that is gone was never."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")
