"""Ties a process to its parent and then becomes it: run as a script before the real command.

A script, not a `preexec_fn`: Python code between fork and exec can deadlock beside gRPC threads.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int, signal_number: int) -> bool:
    """Have the kernel signal us when our parent ends. False: the parent is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
    return os.getppid() == parent_pid


def tethered(
    command: Sequence[str], *, on_parent_death: signal.Signals, uid: int = -1, gid: int = -1
) -> list[str]:
    """The command that runs `command` tied to this process, as `uid` and `gid` where given.

    The kernel watches the *thread* that starts it: use one that lives as long as the process.
    """
    tether = [sys.executable, "-I", "-S", __file__]
    return [*tether, str(os.getpid()), str(int(on_parent_death)), str(uid), str(gid), *command]


def main(arguments: Sequence[str]) -> None:
    parent_pid, signal_number, uid, gid = (int(value) for value in arguments[:4])
    command = list(arguments[4:])
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    # After setuid: changing the user clears the setting.
    if not die_with_parent(parent_pid, signal_number):
        sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 - becoming the command is the purpose


if __name__ == "__main__":
    main(sys.argv[1:])
