"""Which services there are on one machine, and the ports and addresses they have."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.local.errors import LocalError

SERVICES = ("registry", "cache", "quota", "worker")
# Who reads everything and changes nothing: `glossa doctor`.
AUDITOR = "auditor"
AUDITOR_VARIABLE = "GLOSSA_AUDITOR_URL"
# Who reads for the admin pages and changes nothing.
DASHBOARD = "dashboard"
# Everybody with a role in the database, called glossa_<name> there.
LOGINS = (*SERVICES, AUDITOR, DASHBOARD)
HOST = "127.0.0.1"
DEFAULT_STATE_DIR = ".glossa"
DEFAULT_PORT_BASE = 50051
DEFAULT_METRICS_PORT_BASE = 9101
PORT_VARIABLE = "GLOSSA_PORT_BASE"
METRICS_PORT_VARIABLE = "GLOSSA_METRICS_PORT_BASE"


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Where the services listen: consecutive ports in the order of `SERVICES`."""

    base: int = DEFAULT_PORT_BASE
    metrics_base: int = DEFAULT_METRICS_PORT_BASE

    def port(self, service: str) -> int:
        return self.base + SERVICES.index(service)

    def metrics_port(self, service: str) -> int:
        return self.metrics_base + SERVICES.index(service)

    def address(self, service: str) -> str:
        return f"{HOST}:{self.port(service)}"

    def metrics_address(self, service: str) -> str:
        return f"{HOST}:{self.metrics_port(service)}"

    def addresses(self) -> dict[str, str]:
        return {service: self.address(service) for service in SERVICES}


def ports_from(environment: Mapping[str, str]) -> Ports:
    return Ports(
        base=_base(environment, PORT_VARIABLE, DEFAULT_PORT_BASE),
        metrics_base=_base(environment, METRICS_PORT_VARIABLE, DEFAULT_METRICS_PORT_BASE),
    )


def state_dir_from(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("GLOSSA_STATE_DIR") or DEFAULT_STATE_DIR).absolute()


def suite_addresses(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Where a running suite answers: as told by the environment, else as it wrote down itself."""
    environment = os.environ if environment is None else environment
    noted = state_dir_from(environment) / "suite.json"
    if not environment.get(PORT_VARIABLE) and noted.is_file():
        addresses: dict[str, str] = json.loads(noted.read_text())
        return addresses
    return ports_from(environment).addresses()


def _base(environment: Mapping[str, str], variable: str, default: int) -> int:
    written = environment.get(variable) or str(default)
    highest = 65536 - len(SERVICES)
    if not (written.isascii() and written.isdecimal()) or not 1 <= int(written) <= highest:
        raise LocalError(f"{variable} must be a port from 1 to {highest}, not {written!r}")
    return int(written)
