"""Looks at processes that are not our children, which nothing else tells us about."""

import asyncio
from collections.abc import Iterable
from pathlib import Path


def _status(pid: int) -> tuple[str, int]:
    """State letter and parent of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[1])


def is_running(pid: int) -> bool:
    try:
        return _status(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> set[int]:
    """Everything a process has started, directly or not, that still runs."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and is_running(int(folder.name)):
            try:
                parents[int(folder.name)] = _status(int(folder.name))[1]
            except (FileNotFoundError, ProcessLookupError):
                continue
    found: set[int] = set()
    level = {pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level} - found
        found |= level
    return found


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


async def all_ended(pids: Iterable[int]) -> None:
    """Return when none of them runs; whoever waits puts a time-out around it."""
    while any(is_running(pid) for pid in pids):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
