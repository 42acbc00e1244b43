"""One service as a child process: started, watched until healthy, started again when it dies."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.local.errors import LocalError
from services.local.tether import tethered
from services.runtime.tls import Tls
from services.runtime.transport import open_transport

READY_SECONDS = 30.0
PROBE_SECONDS = 1.0
POLL_SECONDS = 0.03
GRACE_SECONDS = 15.0
FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 10.0
STEADY_SECONDS = 30.0  # who lived this long starts again without a pause

Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ServiceSpec:
    """What it takes to start a service."""

    name: str
    address: str
    environment: Mapping[str, str]
    log_file: Path
    tls: Tls | None = None


class KeptService:
    """A service that is kept running until `stop`."""

    def __init__(self, spec: ServiceSpec, report: Report) -> None:
        self._spec = spec
        self._report = report
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    async def start(self) -> None:
        """Start it and return when it is healthy; the first time, dying is the end."""
        self._spec.log_file.unlink(missing_ok=True)
        await self._spawn()
        if not await self._healthy():
            raise LocalError(self._last_words(), next_step=f"see {self._spec.log_file}")
        self._keeper = asyncio.create_task(self._keep(), name=f"keep {self._spec.name}")

    async def stop(self) -> None:
        """Ask it to drain, wait, then insist."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        if self._process is not None:
            await _end(self._process)

    async def _keep(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            assert self._process is not None
            started_at = asyncio.get_running_loop().time()
            code = await self._process.wait()
            lived = asyncio.get_running_loop().time() - started_at
            pause = FIRST_PAUSE_SECONDS if lived > STEADY_SECONDS else pause
            self._report(f"{self._spec.name} {_manner(code)}; starting it again")
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            await self._spawn()
            if await self._healthy():
                self._report(f"{self._spec.name} is back")

    async def _spawn(self) -> None:
        command = [sys.executable, "-P", "-m", f"services.{self._spec.name}"]
        with self._spec.log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                # The services survive anything but us: state is in the database, so no drain.
                *tethered(command, on_parent_death=signal.SIGKILL),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self._spec.environment),
                start_new_session=True,  # Ctrl-C reaches us alone; we stop them in order
            )

    async def _healthy(self) -> bool:
        assert self._process is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_SECONDS), _channel(self._spec) as channel:
                while self._process.returncode is None:
                    if await is_serving(channel):
                        return True
                    await asyncio.sleep(POLL_SECONDS)
        return False

    def _last_words(self) -> str:
        lines = self._spec.log_file.read_text(errors="replace").strip().split("\n")
        told = [line for line in lines if "cannot start" in line] or lines[-1:]
        return told[-1] or f"{self._spec.name} does not start"


async def is_serving(channel: grpc.aio.Channel, timeout_seconds: float = PROBE_SECONDS) -> bool:
    """Whether the server behind the channel says it is healthy."""
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        answer = await stub.Check(
            health_pb2.HealthCheckRequest(), timeout=timeout_seconds, wait_for_ready=True
        )
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _channel(spec: ServiceSpec) -> grpc.aio.Channel:
    options = [
        (f"grpc.{name}_reconnect_backoff_ms", milliseconds)
        for name, milliseconds in (("initial", 20), ("min", 20), ("max", 100))
    ]
    # Its own connection pool, so that a refused connection of another probe does not hold us back.
    options.append(("grpc.use_local_subchannel_pool", 1))
    return open_transport(spec.address, spec.tls, options=options)


async def _end(process: asyncio.subprocess.Process) -> None:
    try:
        if process.returncode is None:
            process.terminate()
            async with asyncio.timeout(GRACE_SECONDS):
                await process.wait()
    except TimeoutError:
        pass
    finally:
        # Whatever it started in its group goes with it, also when we are told to hurry.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _manner(code: int) -> str:
    if code < 0:
        return f"was killed ({signal.Signals(-code).name})"
    return f"ended with code {code}"
