"""What a PDF child gives up before it opens a file: memory, files, network, outliving us."""

import ctypes
import os
import resource
import signal
import struct
import sys

PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

LANDLOCK_CREATE_RULESET = 444  # the same numbers on every architecture
LANDLOCK_RESTRICT_SELF = 446
LANDLOCK_ASK_VERSION = 1

OPEN_FILES = 16


def confine(*, parent_pid: int, memory_bytes: int) -> None:
    """Give up, for good, everything that reading a file already opened does not need."""
    leave_network()
    die_with(parent_pid)
    close_file_system()
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


def close_file_system() -> None:
    """Open no file, reach no other process, from now on; kernels before 5.13 cannot promise it.

    A child taken over by a PDF must not read keys into its answers or change what was hashed.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    version = libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_ASK_VERSION)
    if version < 1:
        return
    files = (1 << (13 + (version >= 2) + (version >= 3) + (version >= 5))) - 1
    connections = 0b11 if version >= 4 else 0  # bind and connect
    processes = 0b11 if version >= 6 else 0  # abstract sockets and signals
    wanted = struct.pack("QQQ", files, connections, processes)
    size = 8 + 8 * (version >= 4) + 8 * (version >= 6)
    rules = libc.syscall(LANDLOCK_CREATE_RULESET, wanted, size, 0)
    libc.syscall(LANDLOCK_RESTRICT_SELF, rules, 0)
    os.close(rules)


def silence() -> int:
    """Point standard output and error at nothing; answer with what standard output was."""
    answers = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    os.close(nothing)
    return answers
