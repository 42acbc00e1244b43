"""A service process: health, reflection, metrics, limits, and a clean end on SIGTERM."""

import asyncio
import gc
import ipaddress
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
import structlog
from cryptography.exceptions import UnsupportedAlgorithm
from google.protobuf import descriptor_pool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from pydantic import ValidationError
from pydantic_settings import SettingsError

from services.runtime.auth import SCOPES_ATTRIBUTE, TokenVerifier
from services.runtime.errors import GlossaError
from services.runtime.interceptors import CallGuard, GuardedServer, Policies
from services.runtime.logging import configure_logging
from services.runtime.loop_lag import loop_lag, watching_the_loop
from services.runtime.metrics import build_info, metrics_port, request_metrics
from services.runtime.settings import ServiceSettings
from services.runtime.tls import CA_FILE, CERT_FILE, KEY_FILE, Tls, TlsMisconfigured, tls_of
from services.runtime.tracing import TracingNotInstalled, tracing

log = structlog.get_logger()

# Calls that have arrived and wait for the loop to take them up.
_MOST_PENDING = 100_000

Settings = TypeVar("Settings", bound=ServiceSettings)


class CannotStart(Exception):
    """The service cannot start; the message is for the person who started it."""


@dataclass(frozen=True, kw_only=True)
class Servicer:
    """One gRPC service of a process."""

    name: str
    handler: Any
    add: Callable[[Any, Any], None]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a composition root hands over to be served."""

    servicers: Sequence[Servicer]
    # Runs when draining starts, after health says NOT_SERVING: end long streams, stop taking work.
    on_drain: Callable[[], Awaitable[None]] | None = None
    # What the HTTP port serves instead of /metrics alone; an ASGI application.
    pages: Any = None


@dataclass(frozen=True, kw_only=True)
class Running:
    address: str
    metrics_address: str


Compose = Callable[[Settings], AbstractAsyncContextManager[Parts]]


def run(service: str, settings: type[Settings], compose: Compose[Settings]) -> None:
    """The main function of a service; serves until it is told to stop."""
    with starting(service, settings) as config:
        asyncio.run(_serve_until_told(service, config, compose))


@contextmanager
def starting(service: str, settings: type[Settings]) -> Iterator[Settings]:
    """Reads the settings and says in one sentence why what follows cannot start."""
    try:
        config = settings()
        configure_logging(service, level=config.log_level)
        with tracing(service, config.tracing):
            yield config
    except ValidationError as error:
        sys.exit(f"{service} cannot start: {_explain(error)}")
    except (CannotStart, GlossaError, OSError, SettingsError) as error:
        sys.exit(f"{service} cannot start: {error}")
    except (TlsMisconfigured, TracingNotInstalled) as error:
        sys.exit(f"{service} cannot start: {error}")


@asynccontextmanager
async def running(
    service: str, config: Settings, compose: Compose[Settings]
) -> AsyncIterator[Running]:
    """Serve until the block ends, then drain: health first, then streams, then calls under way."""
    tls = _transport(config)
    build_info(service)
    async with watching_the_loop(loop_lag(service).observe), compose(config) as parts:
        server, guarded = _build_server(service, config, parts.servicers)
        status = await _add_health(guarded, parts.servicers)
        port = _listen(server, config, tls)
        async with _http_port(config, parts.pages) as scraped_port:
            await server.start()
            try:
                yield Running(
                    address=f"{config.host}:{port}",
                    metrics_address=f"{config.host}:{scraped_port}",
                )
            finally:
                await status.enter_graceful_shutdown()
                if parts.on_drain is not None:
                    await parts.on_drain()
                await server.stop(config.drain_seconds)


async def _serve_until_told(service: str, config: Settings, compose: Compose[Settings]) -> None:
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    async with running(service, config, compose) as here:
        log.info("serving", address=here.address, metrics=here.metrics_address)
        _spare_the_collector()
        await told.wait()
        log.info("draining")
    log.info("stopped")


def _spare_the_collector() -> None:
    """What exists by now stays, so looking through it again and again is a waste.

    Calls leave no cycles behind; with the usual threshold a tenth of the time goes into looking.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


def _build_server(
    service: str, config: ServiceSettings, servicers: Sequence[Servicer]
) -> tuple[grpc.aio.Server, GuardedServer]:
    guard = CallGuard(
        verifier=_verifier(config.verify_key_file),
        policies=_policies(servicers),
        metrics=request_metrics(service),
    )
    server = grpc.aio.server(
        maximum_concurrent_rpcs=config.max_concurrent_rpcs,
        options=[
            # Otherwise a second server on a taken port binds silently.
            ("grpc.so_reuseport", 0),
            # Otherwise a crowd of more than a thousand meets resets (CANCELLED) that no handler
            # has seen; what is too much is refused by the limit above, in words.
            ("grpc.server.max_pending_requests", _MOST_PENDING),
            ("grpc.server.max_pending_requests_hard_limit", _MOST_PENDING),
            ("grpc.max_receive_message_length", config.max_message_bytes),
            ("grpc.max_send_message_length", 4 * config.max_message_bytes),
            ("grpc.max_metadata_size", 16 * 1024),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
        ],
    )
    guarded = guard.before(server)
    for servicer in servicers:
        servicer.add(servicer.handler, guarded)
    if config.reflection:
        names = [servicer.name for servicer in servicers]
        reflected = reflection.aio.ReflectionServicer([*names, reflection.SERVICE_NAME])
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, guarded)
    return server, guarded


def _policies(servicers: Sequence[Servicer]) -> Policies:
    """Who may call what, from the `allow` marks; an RPC without one is a mistake found at start."""
    policies: dict[str, frozenset[str]] = {}
    for servicer in servicers:
        service = descriptor_pool.Default().FindServiceByName(servicer.name)
        for method in service.methods:
            scopes = getattr(getattr(servicer.handler, method.name), SCOPES_ATTRIBUTE, None)
            if scopes is None:
                raise CannotStart(f"{servicer.name}/{method.name} does not say who may call it")
            policies[f"/{servicer.name}/{method.name}"] = scopes
    return policies


async def _add_health(
    guarded: GuardedServer, servicers: Sequence[Servicer]
) -> health.aio.HealthServicer:
    status = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(status, guarded)
    for name in ("", *(servicer.name for servicer in servicers)):
        await status.set(name, health_pb2.HealthCheckResponse.SERVING)
    return status


@asynccontextmanager
async def _http_port(config: ServiceSettings, pages: Any) -> AsyncIterator[int]:
    async with AsyncExitStack() as stack:
        try:
            if pages is None:
                port = stack.enter_context(metrics_port(config.host, config.metrics_port))
            else:
                # Imported here: only who has pages needs it.
                from services.runtime.http import http_port  # noqa: PLC0415

                port = await stack.enter_async_context(
                    http_port(config.host, config.metrics_port, pages)
                )
        except OSError as error:
            raise CannotStart(
                f"cannot serve metrics on {config.host}:{config.metrics_port}"
                f" ({error.strerror}); set GLOSSA_METRICS_PORT to another port"
            ) from None
        yield port


def _verifier(key_file: Path) -> TokenVerifier:
    try:
        return TokenVerifier(key_file.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise CannotStart(
            f"GLOSSA_VERIFY_KEY_FILE {key_file} holds no public key we can read: {error}"
        ) from None


def _transport(config: ServiceSettings) -> Tls | None:
    """How we are spoken to; plain text leaves the machine only where somebody said it may."""
    tls = tls_of(config)
    if tls is None and not _is_loopback(config.host) and not config.allow_plaintext:
        raise CannotStart(
            f"GLOSSA_HOST {config.host} can be reached from other machines: set {CERT_FILE},"
            f" {KEY_FILE} and {CA_FILE}, or GLOSSA_ALLOW_PLAINTEXT=true where a mesh encrypts"
        )
    if tls is not None and not tls.can_serve:
        raise CannotStart(f"{CA_FILE} is set without {CERT_FILE} and {KEY_FILE}; set all three")
    return tls


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(server: grpc.aio.Server, config: ServiceSettings, tls: Tls | None) -> int:
    address = f"{config.host}:{config.port}"
    try:
        if tls is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, tls.server_credentials())
    except RuntimeError:
        raise CannotStart(
            f"port {config.port} on {config.host} is taken; set GLOSSA_PORT to another one"
        ) from None


def _explain(error: ValidationError) -> str:
    problems = (
        f"GLOSSA_{'_'.join(str(part) for part in problem['loc']).upper()}: {problem['msg']}"
        for problem in error.errors()
    )
    return "; ".join(problems)
