"""Tells the allocator to keep what uploads will need again in a moment."""

import ctypes

# Numbers of glibc's mallopt.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
KEPT_BYTES = 32 << 20
STEP_BYTES = 8 << 20


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
