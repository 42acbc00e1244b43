"""The whole suite on one machine: Postgres, roles and tables, four services kept running."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from services.local.bootstrap import bootstrap, describe, ensure_database, service_url
from services.local.errors import LocalError
from services.local.kept_postgres import KeptPostgres
from services.local.layout import (
    AUDITOR_VARIABLE,
    DASHBOARD,
    HOST,
    METRICS_PORT_VARIABLE,
    PORT_VARIABLE,
    SERVICES,
    Ports,
    ports_from,
    state_dir_from,
)
from services.local.processes import KeptService, Report, ServiceSpec
from services.local.state import State
from services.runtime.periodic import periodic
from services.runtime.tls import Tls, tls_in

DATABASE_NAME = "glossa"
TOKENS_EVERY = timedelta(hours=1)
# Who calls others stops before those it calls.
STOP_ORDER = ("worker", "cache", "quota", "registry")
# Only who asks the model needs its key, and nobody else's address of the database is theirs.
MODEL_SECRETS = {"OPENAI_API_KEY"}
MODEL_USERS = {"cache", "worker"}
# Who may see the admin page here unless told.
ADMIN_EMAILS = "ADMIN_EMAILS"
LOCAL_ADMIN = "admin@localhost"
DASHBOARD_URL = "GLOSSA_DASHBOARD_DATABASE_URL"
CALLBACK_SECRET = "GLOSSA_CALLBACK_SECRET"  # noqa: S105 - the name of one


@dataclass(frozen=True, kw_only=True)
class SuitePlan:
    """What to run and where."""

    state: State
    ports: Ports
    environment: Mapping[str, str]
    # What the services encrypt with, and so do we when we look after them.
    tls: Tls | None

    @property
    def database_url(self) -> str:
        """An existing server, or nothing for our own."""
        return self.environment.get("DATABASE_URL", "")

    @property
    def store_url(self) -> str:
        return self.environment.get("GLOSSA_STORE_URL") or self.state.objects.as_uri()

    @property
    def callback_secret(self) -> str:
        return self.environment.get(CALLBACK_SECRET) or self.state.callback_secret()

    @property
    def admin_emails(self) -> str:
        return self.environment.get(ADMIN_EMAILS, LOCAL_ADMIN)


@dataclass(frozen=True, kw_only=True)
class RunningSuite:
    """The suite as it runs: who it is, for those who want to show or disturb it."""

    plan: SuitePlan
    database: str
    services: Mapping[str, KeptService]


def plan_from(environment: Mapping[str, str] | None = None) -> SuitePlan:
    environment = dict(os.environ if environment is None else environment)
    return SuitePlan(
        state=State(state_dir_from(environment)),
        ports=ports_from(environment),
        environment=environment,
        tls=tls_in(environment),
    )


@asynccontextmanager
async def running_suite(plan: SuitePlan, report: Report) -> AsyncIterator[RunningSuite]:
    """Run everything until the block ends, then stop it in reverse order."""
    plan.state.prepare()
    async with AsyncExitStack() as stack:
        stack.enter_context(plan.state.locked())
        check_ports(plan.ports)
        await stack.enter_async_context(_fresh_tokens(plan.state))
        admin_url = await _database(plan, report, stack)
        passwords = plan.state.passwords()
        urls = await bootstrap(admin_url, passwords)
        dashboard_url = service_url(admin_url, DASHBOARD, passwords[DASHBOARD])
        services = await _start_services(plan, urls, dashboard_url, report, stack)
        stack.enter_context(plan.state.announced(plan.ports.addresses()))
        yield RunningSuite(plan=plan, database=describe(admin_url), services=services)


def check_ports(ports: Ports) -> None:
    """Refuse to start where somebody else, or another of us, listens already."""
    if abs(ports.base - ports.metrics_base) < len(SERVICES):
        raise LocalError(
            f"the ports from {PORT_VARIABLE}={ports.base} and "
            f"{METRICS_PORT_VARIABLE}={ports.metrics_base} on overlap",
            next_step=f"set them at least {len(SERVICES)} apart",
        )
    for service in SERVICES:
        _check_port(ports.port(service), PORT_VARIABLE)
        _check_port(ports.metrics_port(service), METRICS_PORT_VARIABLE)


def service_environment(
    plan: SuitePlan, service: str, database_url: str, dashboard_url: str = ""
) -> dict[str, str]:
    """Everything a service reads from its environment."""
    hidden = {"DATABASE_URL", AUDITOR_VARIABLE, CALLBACK_SECRET, ADMIN_EMAILS, DASHBOARD_URL}
    hidden |= set() if service in MODEL_USERS else MODEL_SECRETS
    inherited = {name: value for name, value in plan.environment.items() if name not in hidden}
    addresses = plan.ports.addresses().items()
    return inherited | {
        "GLOSSA_HOST": HOST,
        "GLOSSA_PORT": str(plan.ports.port(service)),
        "GLOSSA_METRICS_PORT": str(plan.ports.metrics_port(service)),
        "GLOSSA_DATABASE_URL": database_url,
        "GLOSSA_VERIFY_KEY_FILE": str(plan.state.verify_key_file),
        "GLOSSA_TOKEN_FILE": str(plan.state.token_file(service)),
        "GLOSSA_STORE_URL": plan.store_url,
        "GLOSSA_SPOOL_DIR": str(plan.state.spool),
        "GLOSSA_STATE_DIR": str(plan.state.root),
        "PYTHONUNBUFFERED": "1",
        **{f"GLOSSA_{name.upper()}_ADDRESS": address for name, address in addresses},
        **({CALLBACK_SECRET: plan.callback_secret} if service == "registry" else {}),
        **(
            {ADMIN_EMAILS: plan.admin_emails, DASHBOARD_URL: dashboard_url}
            if service == "worker"
            else {}
        ),
    }


@asynccontextmanager
async def _fresh_tokens(state: State) -> AsyncIterator[None]:
    async def refresh() -> None:
        state.refresh_tokens()

    await refresh()  # once before anybody needs one, and loudly
    async with periodic("refresh_tokens", every=TOKENS_EVERY, run_once=refresh):
        yield


async def _database(plan: SuitePlan, report: Report, stack: AsyncExitStack) -> str:
    if plan.database_url:
        return plan.database_url
    postgres = await stack.enter_async_context(KeptPostgres(plan.state.postgres, report))
    return await ensure_database(postgres.url, DATABASE_NAME)


async def _start_services(
    plan: SuitePlan,
    urls: Mapping[str, str],
    dashboard_url: str,
    report: Report,
    stack: AsyncExitStack,
) -> dict[str, KeptService]:
    services = {
        name: KeptService(_spec(plan, name, urls[name], dashboard_url), report) for name in SERVICES
    }
    for name in reversed(STOP_ORDER):
        stack.push_async_callback(services[name].stop)
    starts = [asyncio.create_task(service.start()) for service in services.values()]
    try:
        await asyncio.gather(*starts)
    except BaseException:
        for start in starts:
            start.cancel()
        await asyncio.gather(*starts, return_exceptions=True)
        raise
    return services


def _spec(plan: SuitePlan, service: str, database_url: str, dashboard_url: str) -> ServiceSpec:
    return ServiceSpec(
        name=service,
        address=plan.ports.address(service),
        environment=service_environment(plan, service, database_url, dashboard_url),
        log_file=Path(plan.state.log_file(service)),
        tls=plan.tls,
    )


def _check_port(port: int, variable: str) -> None:
    others = f"set {variable} to use others"
    with socket.socket() as probe:
        # As the servers do it: connections of the last run in TIME_WAIT do not count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except PermissionError:
            raise LocalError(f"port {port} needs root", next_step=others) from None
        except OSError:
            message = f"port {port} is taken by another program"
            raise LocalError(message, next_step=others) from None
