"""The connection pool: time-outs everywhere, JSON as objects, driver trouble as DependencyDown."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg
import structlog

from services.runtime.errors import DependencyDown
from services.runtime.periodic import periodic
from services.runtime.pool_metrics import PoolMetrics, pool_metrics

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection = PoolConnectionProxy[asyncpg.Record]
else:
    Connection = asyncpg.Connection

log = structlog.get_logger()

CONNECT_SECONDS = 5.0
ACQUIRE_SECONDS = 2.0
STATEMENT_SECONDS = 5.0
LOCK_SECONDS = 3.0
RETRY_AFTER = timedelta(seconds=1)
LISTEN_AGAIN = timedelta(seconds=1)
COUNT_EVERY = timedelta(seconds=1)

TRY_LEADING = "SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))"
# Who leads waits for its own statements on other connections.
PATIENT_TRANSACTION = "SET LOCAL idle_in_transaction_session_timeout = '10min'"

# Classes of SQLSTATE that say the database is away or busy, not that we asked nonsense:
# connection, login, transaction rollback, resources, lock not available, operator intervention.
_TROUBLE = frozenset({"08", "28", "40", "53", "55", "57"})
# What a former primary says after a failover.
_READ_ONLY = "25006"
# Everything that connecting may raise, a malformed address included.
CONNECT_ERRORS = (
    OSError,
    TimeoutError,
    ValueError,
    OverflowError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
)
_DRIVER_ERRORS = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    # What asyncpg says when the server ended a connection between two statements.
    asyncpg.InternalClientError,
)


class Database:
    """One service's pool. A `transaction` commits when its block ends and rolls back on error."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]", metrics: PoolMetrics) -> None:
        self._pool = pool
        self._metrics = metrics

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        with _driver_trouble():
            connection = await self._acquire()
            try:
                yield connection
            finally:
                await self._pool.release(connection)

    async def _acquire(self) -> Connection:
        metrics, began = self._metrics, time.perf_counter()
        metrics.waiting.inc()
        try:
            connection = await self._pool.acquire(timeout=ACQUIRE_SECONDS)
        except Exception:
            metrics.failures.inc()
            raise
        finally:
            metrics.waiting.dec()
        metrics.acquire_seconds.observe(time.perf_counter() - began)
        return connection

    async def count_connections(self) -> None:
        """Tell how much of the pool is used."""
        idle = self._pool.get_idle_size()
        self._metrics.connections.labels("idle").set(idle)
        self._metrics.connections.labels("used").set(self._pool.get_size() - idle)
        self._metrics.limit.set(self._pool.get_max_size())

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self.connection() as connection, connection.transaction():
            yield connection

    @asynccontextmanager
    async def leading(self, duty: str) -> AsyncIterator[bool]:
        """Whether this process may do a duty that one at a time is enough for.

        The lock belongs to a transaction, so that it works through a pooler and dies with us.
        """
        async with self.transaction() as connection:
            await connection.execute(PATIENT_TRANSACTION)
            yield await connection.fetchval(TRY_LEADING, duty)

    async def listen(self, channels: Mapping[str, Callable[[str], None]]) -> None:
        """Call back with the payload of every notification, until the connection is lost."""
        lost = asyncio.Event()

        def hear(_connection: object, _pid: int, channel: str, payload: object) -> None:
            channels[channel](str(payload))

        async with self.connection() as connection:
            connection.add_termination_listener(lambda _: lost.set())
            try:
                for channel in channels:
                    await connection.add_listener(channel, hear)
                await lost.wait()
            finally:
                for channel in channels:
                    await connection.remove_listener(channel, hear)


@asynccontextmanager
async def listening(
    database: Database, channels: Mapping[str, Callable[[str], None]]
) -> AsyncIterator[None]:
    """Hear notifications until the block ends, on a new connection whenever one is lost.

    They are hints: some are missed in between, so whoever listens polls as well.
    """

    async def listen() -> None:
        await database.listen(channels)

    async with periodic("listen", every=LISTEN_AGAIN, run_once=listen):
        yield


@asynccontextmanager
async def open_database(
    url: str,
    *,
    application_name: str,
    pool_size: int = 10,
    statement_seconds: float = STATEMENT_SECONDS,
    lock_seconds: float = LOCK_SECONDS,
    beside_another: bool = False,
) -> AsyncIterator[Database]:
    """Connect, or say in one sentence why not.

    A pool beside another connects when somebody needs it, and exports no metrics: the service can
    do without it.
    """
    try:
        pool = await asyncpg.create_pool(
            url,
            min_size=0 if beside_another else 1,
            max_size=pool_size,
            timeout=CONNECT_SECONDS,
            command_timeout=statement_seconds,
            init=_prepare_connection,
            reset=_leave_as_it_is,
            server_settings={
                "application_name": f"glossa-{application_name}",
                "statement_timeout": _milliseconds(statement_seconds),
                "lock_timeout": _milliseconds(lock_seconds),
                "idle_in_transaction_session_timeout": _milliseconds(2 * statement_seconds),
            },
        )
    except CONNECT_ERRORS as error:
        raise DependencyDown(
            f"cannot connect to the database: {connection_problem(error)};"
            " check GLOSSA_DATABASE_URL",
            reason="DATABASE_UNAVAILABLE",
            retry_after=RETRY_AFTER,
        ) from error
    database = Database(pool, pool_metrics(application_name, exported=not beside_another))
    try:
        async with periodic(
            "count_connections", every=COUNT_EVERY, run_once=database.count_connections
        ):
            yield database
    finally:
        # A pool whose server is gone never closes politely.
        pool.terminate()


def connection_problem(error: Exception) -> str:
    """Why connecting failed, in words that never contain a part of the address."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, OSError):
        return (error.strerror or "the host cannot be reached").lower()
    if isinstance(error, asyncpg.PostgresError):
        return str(error)
    return "the address is malformed"


async def _prepare_connection(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads
    )


async def _leave_as_it_is(_: object) -> None:
    """Nobody here changes a session: settings are local to transactions, and so are locks.

    asyncpg's own reset would be one more query for every connection given back. Transactions that
    were left open it rolls back without being asked.
    """


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))


@contextmanager
def _driver_trouble() -> Iterator[None]:
    """Turn what the driver raises when the database is away into the error callers can wait out."""
    try:
        yield
    except _DRIVER_ERRORS as error:
        if not is_trouble(error):
            raise
        log.warning("database_trouble", error=type(error).__name__, detail=str(error)[:200])
        raise DependencyDown(
            "the database cannot be reached in time",
            reason="DATABASE_UNAVAILABLE",
            retry_after=RETRY_AFTER,
        ) from error


def is_trouble(error: BaseException) -> bool:
    if isinstance(error, asyncpg.PostgresError):
        return error.sqlstate == _READ_ONLY or (error.sqlstate or "")[:2] in _TROUBLE
    return not isinstance(error, asyncpg.DataError | ValueError)
