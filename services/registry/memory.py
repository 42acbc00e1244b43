"""Tells the allocator to keep what uploads will need again in a moment."""

import ctypes

# Numbers of glibc's mallopt.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8
KEPT_BYTES = 16 << 20
STEP_BYTES = 2 << 20
# What is kept is kept in each of them.
ARENAS = 2


def keep_freed_memory() -> None:
    """Give freed memory back to the kernel later than glibc would.

    Messages of an upload come and go by the hundred; fetching their pages anew each time takes the
    kernel as long as hashing them takes us.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library
        return
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(M_TOP_PAD, STEP_BYTES)
    mallopt(M_MMAP_THRESHOLD, STEP_BYTES)
    mallopt(M_ARENA_MAX, ARENAS)
