"""Where benchmarks run: an embedded Postgres that really writes, and services as own processes."""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import grpc

from services.local.bootstrap import bootstrap, ensure_database
from services.local.free_ports import free_ports
from services.local.layout import HOST, SERVICES
from services.local.postgres import EmbeddedPostgres
from services.local.processes import KeptService, ServiceSpec
from services.local.state import State
from services.local.supervisor import SuitePlan, service_environment

# Limits are not what is measured.
UNLIMITED = {"hard_limit": 10**6, "daily_limit": 10**6, "units_per_period": 10**9}
PEERS_PYTHON = Path(".venv-bench/bin/python")


@dataclass(kw_only=True)
class Stand:
    """Running services, and what it takes to call them and to look into their database."""

    plan: SuitePlan
    admin_url: str
    urls: dict[str, str]
    addresses: dict[str, str]
    stack: AsyncExitStack

    def token(self, *scopes: str) -> str:
        return self.plan.state.signer().sign(
            subject="bench", scopes=scopes, lifetime=timedelta(hours=1)
        )

    def bearer(self, *scopes: str) -> grpc.aio.Metadata:
        return grpc.aio.Metadata(("authorization", f"Bearer {self.token(*scopes)}"))

    async def channel(self, name: str) -> grpc.aio.Channel:
        return await self.stack.enter_async_context(
            grpc.aio.insecure_channel(self.addresses[name], [("grpc.use_local_subchannel_pool", 1)])
        )

    async def start_all(
        self, settings: Mapping[str, Mapping[str, object]]
    ) -> dict[str, KeptService]:
        """The four services, as `glossa up` starts them."""
        started = await asyncio.gather(*(self.start(name, settings.get(name)) for name in SERVICES))
        return dict(zip(SERVICES, started, strict=True))

    async def start(
        self,
        service: str,
        settings: Mapping[str, object] | None = None,
        *,
        name: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> KeptService:
        """Start a service the way `glossa up` does; a second replica needs a name of its own."""
        name = name or service
        ports = self.plan.ports if name == service else free_ports()
        variables = service_environment(self.plan, service, self.urls[service]) | {
            "GLOSSA_PORT": str(ports.port(service)),
            "GLOSSA_METRICS_PORT": str(ports.metrics_port(service)),
            "GLOSSA_LOG_LEVEL": "WARNING",
            **{f"GLOSSA_{key.upper()}": str(value) for key, value in (settings or {}).items()},
            **(environment or {}),
        }
        spec = ServiceSpec(
            name=service,
            address=f"{HOST}:{ports.port(service)}",
            environment=variables,
            log_file=self.plan.state.root / "logs" / f"{name}.log",
        )
        kept = KeptService(spec, report=lambda line: print(line, file=sys.stderr))
        self.stack.push_async_callback(kept.stop)
        await kept.start()
        self.addresses[name] = spec.address
        return kept


@asynccontextmanager
async def open_stand(**options: str) -> AsyncIterator[Stand]:
    """A database of its own with every table made, gone afterwards; options are Postgres's."""
    with tempfile.TemporaryDirectory(prefix="glossa-bench-") as folder:
        plan = SuitePlan(
            state=State(Path(folder)), ports=free_ports(), environment=dict(os.environ), tls=None
        )
        plan.state.prepare()
        plan.state.refresh_tokens()
        async with AsyncExitStack() as stack:
            # fsync stays on, as in production; when a transaction committed can be asked for.
            postgres = await stack.enter_async_context(
                EmbeddedPostgres(
                    plan.state.postgres, options={"track_commit_timestamp": "on", **options}
                )
            )
            admin_url = await ensure_database(postgres.url, "glossa")
            urls = await bootstrap(admin_url, plan.state.passwords())
            inner = await stack.enter_async_context(AsyncExitStack())
            yield Stand(plan=plan, admin_url=admin_url, urls=urls, addresses={}, stack=inner)
