"""The suite as real processes with a wire that can fail on every edge, and short clocks."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import asyncpg
import grpc

from services.doctor.bounds import Allowed, Bounds
from services.doctor.examine import find_violations
from services.local.bootstrap import bootstrap, ensure_database
from services.local.free_ports import free_ports
from services.local.kept_postgres import KeptPostgres
from services.local.processes import KeptService, is_serving
from services.local.state import State
from services.local.supervisor import SuitePlan
from services.quota.config import Config as QuotaConfig
from tests.bench.stand import Stand
from tests.e2e.conftest import reachable_folder
from tests.fake_openai import FakeOpenAI, fake_openai
from tests.faults.fault_proxy import FAIR, FaultProxy, Manner, Weather, fault_proxy

REPLICAS = {
    "registry": "registry",
    "quota-1": "quota",
    "quota-2": "quota",
    "cache-1": "cache",
    "cache-2": "cache",
    "worker-1": "worker",
    "worker-2": "worker",
}
# Who speaks to whom; clients reach every replica by a wire of its own.
CALLS = {
    "registry": ("cache",),
    "cache": ("registry", "quota", "worker"),
    "quota": (),
    "worker": ("cache", "registry", "quota"),
}
FRONT = ("registry", "cache-1", "cache-2", "worker-1", "worker-2")
LEASE_SECONDS = 2.0
HARD_LIMIT = 40
PRICES = {"generated": 3, "cached": 1, "joined": 1}
# Short clocks: what takes minutes in production is over in seconds here.
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "registry": {"garbage_grace_seconds": 2, "garbage_every_seconds": 2, "drain_seconds": 2},
    "quota": {
        "units_per_period": 10**9,
        "hard_limit": HARD_LIMIT,
        "daily_limit": 10**6,
        "answer_within_seconds": 2,  # machines are shared
        "daily_ceiling_dollars": 0,
        "document_ceiling_dollars": 0,
        "drain_seconds": 2,
        **{f"price_{outcome}": units for outcome, units in PRICES.items()},
    },
    "cache": {
        "lease_seconds": LEASE_SECONDS,
        "max_attempts": 6,
        "backoff_seconds": "[0.5, 1]",
        "backoff_jitter_seconds": 0.2,
        "hold_seconds": 1,
        "intent_seconds": 6,
        "sweep_seconds": 1,
        "poll_seconds": 0.2,
        "drain_seconds": 2,
    },
    "worker": {
        "renew_seconds": 0.5,
        "concurrency": 4,
        "attempt_grace_seconds": 1,
        "heartbeat_seconds": 1,
        "collect_seconds": 1,
        "model_call_seconds": 4,
        "model_hold_seconds": 4,
        "drain_seconds": 2,
    },
}
AT_REST = """
SELECT NOT EXISTS (SELECT FROM cache.generations WHERE status = 'generating')
   AND NOT EXISTS (SELECT FROM cache.requests WHERE state IN ('intent', 'waiting'))
   AND NOT EXISTS (SELECT FROM cache.outbox)
"""


class Server(Protocol):
    """A Postgres, as far as the house is concerned."""

    @property
    def url(self) -> str: ...


@dataclass(kw_only=True)
class House:
    """Running processes by name, the wires between them, and the database behind them."""

    stand: Stand
    model: FakeOpenAI
    wires: Mapping[str, FaultProxy]
    services: dict[str, KeptService] = field(default_factory=dict)
    # Who was reached through a channel before, by address.
    channels: dict[str, grpc.aio.Channel] = field(default_factory=dict)

    def send_signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self.services[name].pid, number)

    async def until_serving(self, name: str) -> None:
        """Directly, not over a wire."""
        channel = self.channel(self.stand.addresses[name])
        async with asyncio.timeout(60):
            while not await is_serving(channel):  # noqa: ASYNC110 - health is asked for
                await asyncio.sleep(0.05)

    def crash_database(self, number: signal.Signals = signal.SIGKILL) -> None:
        """The whole server at once; whoever keeps it starts it again on the same port."""
        os.kill(postmaster_pid(self.stand.plan.state.postgres), number)

    def clear(self) -> None:
        """Fair weather on every wire."""
        for wire in self.wires.values():
            wire.set(FAIR)

    def move_database(self, address: str) -> None:
        """From now on every service's way leads to another server; old connections break."""
        for service in CALLS:
            wire = self.wires[f"{service}>postgres"]
            wire.targets[:] = [address]
            wire.set(Weather(manner=Manner.RESET))
            wire.set(FAIR)

    def front(self, name: str) -> grpc.aio.Channel:
        """A client's channel to a replica, through its wire."""
        return self.channel(self.wires[f"client>{name}"].address)

    def channel(self, address: str) -> grpc.aio.Channel:
        if address not in self.channels:
            options = [
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 500),
                ("grpc.max_reconnect_backoff_ms", 1000),
                ("grpc.http2.max_pings_without_data", 0),
                ("grpc.keepalive_time_ms", 10_000),
                ("grpc.keepalive_timeout_ms", 3000),
            ]
            channel = grpc.aio.insecure_channel(address, options)
            self.stand.stack.push_async_callback(channel.close)
            self.channels[address] = channel
        return self.channels[address]

    def bearer(self) -> grpc.aio.Metadata:
        """A gateway's token, good for a day: some services here have a clock of their own."""
        token = self.stand.plan.state.signer().sign(
            subject="faults", scopes=["gateway"], lifetime=timedelta(days=1)
        )
        return grpc.aio.Metadata(("authorization", f"Bearer {token}"))

    async def rows(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(self.stand.admin_url)
        try:
            return await connection.fetch(query, *arguments)
        finally:
            await connection.close()

    async def until(self, question: str, *arguments: object, seconds: float = 60.0) -> None:
        """Return when the database says yes, whatever it suffers meanwhile."""
        async with asyncio.timeout(seconds):
            while True:
                try:
                    [(answer,)] = await self.rows(question, *arguments)
                except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    answer = False
                if answer:
                    return
                await asyncio.sleep(0.1)

    async def violations(self, grace: timedelta) -> dict[str, list[str]]:
        """What the doctor finds, with everything in it that recovery has had time for."""
        return await find_violations(self.stand.admin_url, grace=grace, bounds=bounds())


def bounds() -> Bounds:
    """The limits that this house's Quota was told."""
    unused = {"database_url": "unused", "verify_key_file": "unused"}
    rules = QuotaConfig.model_validate(unused | dict(SETTINGS["quota"])).rules()
    limits = [
        Allowed(plan=plan, endpoint=endpoint, hard=limit.hard, daily=limit.daily)
        for (plan, endpoint), limit in rules.limits.items()
    ]
    return Bounds(since=None, max_attempts=6, limits=limits)


def postmaster_pid(folder: Path) -> int:
    pointer = folder / "location"
    home = Path(pointer.read_text()) if pointer.exists() else folder
    return int((home / "data" / "postmaster.pid").read_text().split("\n")[0])


@asynccontextmanager
async def open_house(
    *,
    replicas: Mapping[str, str] = REPLICAS,
    settings: Mapping[str, Mapping[str, object]] | None = None,
    environments: Mapping[str, Mapping[str, str]] | None = None,
    postgres: AbstractAsyncContextManager[Server] | None = None,
) -> AsyncIterator[House]:
    """Everything started and healthy; gone afterwards."""
    folder = reachable_folder()
    reports: list[str] = []
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        model = await stack.enter_async_context(fake_openai())
        wires = {name: await stack.enter_async_context(fault_proxy()) for name in wire_names()}
        wires["worker>model"].targets.append(model.url.split("/")[2])
        plan = SuitePlan(
            state=State(folder / "state"),
            ports=free_ports(),
            environment=_environment(wires),
            tls=None,
        )
        plan.state.prepare()
        plan.state.refresh_tokens()
        server = postgres or KeptPostgres(plan.state.postgres, reports.append)
        admin_url = await ensure_database((await stack.enter_async_context(server)).url, "glossa")
        urls = await bootstrap(admin_url, plan.state.passwords())
        stand = Stand(
            plan=plan,
            admin_url=admin_url,
            urls={
                service: _through(wires[f"{service}>postgres"], urls[service]) for service in urls
            },
            addresses={},
            stack=await stack.enter_async_context(AsyncExitStack()),
        )
        house = House(stand=stand, model=model, wires=wires)
        await _start(house, replicas, settings or {}, environments or {})
        try:
            yield house
        except BaseException:
            print(_unexpected(plan.state.root / "logs"))
            raise


def wire_names() -> list[str]:
    names = [f"client>{name}" for name in FRONT]
    for service, others in CALLS.items():
        names += [f"{service}>{other}" for other in (*others, "postgres")]
    return [*names, "worker>model"]


async def _start(
    house: House,
    replicas: Mapping[str, str],
    settings: Mapping[str, Mapping[str, object]],
    environments: Mapping[str, Mapping[str, str]],
) -> None:
    async def start(name: str, service: str) -> None:
        addresses = {
            f"{other}_address": house.wires[f"{service}>{other}"].address
            for other in CALLS[service]
        }
        house.services[name] = await house.stand.start(
            service,
            {**addresses, **SETTINGS[service], **_told(settings, service, name)},
            name=name,
            environment=environments.get(name),
        )
        for wire, proxy in house.wires.items():
            if wire.partition(">")[2] in (name, service):
                proxy.targets.append(house.stand.addresses[name])

    await asyncio.gather(*(start(name, service) for name, service in replicas.items()))


def _environment(wires: Mapping[str, FaultProxy]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    model = f"http://{wires['worker>model'].address}/v1"
    return {**inherited, "OPENAI_API_KEY": "secret", "OPENAI_BASE_URL": model}


def _through(wire: FaultProxy, url: str) -> str:
    """The same database, reached over a wire."""
    credentials, _, rest = url.rpartition("@")
    address, _, database = rest.partition("/")
    wire.targets.append(address)
    return f"{credentials}@{wire.address}/{database}"


def _unexpected(logs: Path) -> str:
    """What services logged as errors: what nobody had thought of when a test failed."""
    found = [
        f"{log.stem}: {line[:4000]}"
        for log in sorted(logs.glob("*.log"))
        for line in log.read_text(errors="replace").splitlines()
        if '"error"' in line or "Traceback" in line
    ]
    return "\n".join(found[-20:])


def _told(
    settings: Mapping[str, Mapping[str, object]], service: str, name: str
) -> Mapping[str, object]:
    """For all replicas of a service, or for one."""
    return {**settings.get(service, {}), **settings.get(name, {})}
