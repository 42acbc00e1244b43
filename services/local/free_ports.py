"""Finds ports nobody listens on, for suites that live only a moment."""

import contextlib
import random

from services.local.errors import LocalError
from services.local.layout import SERVICES, Ports
from services.local.supervisor import check_ports

# Below the range the kernel gives to outgoing connections.
LOWEST, HIGHEST = 20_000, 32_000
TRIES = 50


def free_ports() -> Ports:
    """Two runs of consecutive free ports; somebody may still be quicker, so use them soon."""
    for _ in range(TRIES):
        base = random.randrange(LOWEST, HIGHEST, 2 * len(SERVICES))  # noqa: S311 - not a secret
        ports = Ports(base=base, metrics_base=base + len(SERVICES))
        with contextlib.suppress(LocalError):
            check_ports(ports)
            return ports
    raise LocalError(f"no free ports between {LOWEST} and {HIGHEST}")
