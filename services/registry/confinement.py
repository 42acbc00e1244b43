"""What a PDF child gives up before it opens a file: memory, writing, network, outliving us."""

import contextlib
import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

OPEN_FILES = 16


def confine(*, parent_pid: int, memory_bytes: int) -> None:
    """Give up, for good, everything that reading a file already opened does not need."""
    leave_network()
    die_with(parent_pid)
    limit(resource.RLIMIT_AS, memory_bytes)
    limit(resource.RLIMIT_FSIZE, 0)
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    limit(resource.RLIMIT_NPROC, 0)


def allow_cpu_seconds(more: int) -> None:
    """Die by SIGXCPU after this much more computing time; only the soft limit can be raised."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = int(used.ru_utime + used.ru_stime) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (spent + more, resource.RLIM_INFINITY))


def limit(which: int, value: int) -> None:
    """Lower soft and hard limit together, so that the child cannot raise it again."""
    _, hard = resource.getrlimit(which)
    lowered = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (lowered, lowered))


def leave_network() -> None:
    """Move into a network without interfaces, where the kernel lets us; some containers do not."""
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        libc.unshare(CLONE_NEWNET)


def die_with(parent_pid: int) -> None:
    """Be killed when the parent dies, and never gain a privilege again."""
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the line above took effect
        sys.exit(0)


def silence() -> int:
    """Point standard output and error at nothing; answer with what standard output was."""
    answers = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError):
        os.set_inheritable(answers, False)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    os.close(nothing)
    return answers
