"""Tells those who asked that a file has been processed: signed, again if need be, never inwards."""

import asyncio
import hashlib
import hmac
import ipaddress
import json
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from urllib.parse import SplitResult, urlsplit

import structlog

from services.registry import metrics
from services.registry.callback_store import CallbackStore, DueCallback
from services.registry.errors import CallbackRefused

log = structlog.get_logger()

DELAYS = tuple(timedelta(seconds=seconds) for seconds in (10, 60, 300, 1800, 7200))
ATTEMPT_SECONDS = 10.0
CLAIM = timedelta(minutes=1)
AT_ONCE = 10
LONGEST_URL = 2000
# IPv4 in IPv6: translated, tunnelled, compatible; and addresses of a site.
DISGUISES = tuple(
    ipaddress.ip_network(net) for net in ("64:ff9b::/96", "2002::/16", "::/96", "fec0::/10")
)
LONGEST_STATUS_LINE = 4096


class CallbackFailed(Exception):
    """An attempt did not reach anybody, or was not understood; the message may be shown."""


@dataclass(frozen=True, kw_only=True)
class CallbackRules:
    """Whom we call at all, and how we sign. Without a secret nobody is called."""

    secret: bytes
    allow_private: bool = False

    def check(self, url: str) -> str:
        """The address, if it is one we would call; names are looked up when it comes to it."""
        if not self.secret:
            raise CallbackRefused("cannot be served: GLOSSA_CALLBACK_SECRET is not set here")
        if len(url) > LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url:
            raise CallbackRefused(f"must be printable ASCII of at most {LONGEST_URL} characters")
        parts = _split(url)
        if parts.scheme != "https" and not (self.allow_private and parts.scheme == "http"):
            raise CallbackRefused("must begin with https://")
        if not parts.hostname or parts.username is not None or parts.fragment:
            raise CallbackRefused("must name a host, and neither a user nor a fragment")
        if _is_address(parts.hostname) and not self.may_call(parts.hostname):
            raise CallbackRefused("must not be a private address")
        return url

    def may_call(self, address: str) -> bool:
        """Whether an address is out in the world, or we were told not to mind."""
        found = ipaddress.ip_address(address)
        mapped = getattr(found, "ipv4_mapped", None) or found
        # Some IPv6 addresses are IPv4 ones in disguise, and may lead inwards.
        disguised = any(mapped.version == net.version and mapped in net for net in DISGUISES)
        outside = mapped.is_global and not mapped.is_multicast and not disguised
        return self.allow_private or outside

    def signature(self, body: bytes, *, now: float) -> str:
        """What the receiver checks; the time keeps old messages from coming back."""
        moment = str(int(now))
        signed = hmac.digest(self.secret, f"{moment}.".encode() + body, hashlib.sha256)
        return f"t={moment},v1={signed.hex()}"


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """Delivers what is due; any number of replicas may."""

    store: CallbackStore
    rules: CallbackRules
    # A name server that does not answer holds its thread long after we have stopped waiting.
    resolvers: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(AT_ONCE, thread_name_prefix="callback-names")
    )

    async def run_once(self) -> None:
        """Deliver until nothing is due."""
        while due := await self.store.claim_callbacks(lasting=CLAIM, most=AT_ONCE):
            await asyncio.gather(*(self._deliver(one) for one in due))

    async def _deliver(self, due: DueCallback) -> None:
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                await self._post(due)
        except TimeoutError:
            await self._put_off(due, "no answer in time")
        except CallbackFailed as failed:
            await self._put_off(due, str(failed))
        except (OSError, ValueError) as error:  # a name or an answer that makes no sense
            await self._put_off(due, f"could not be called ({type(error).__name__})")
        except CallbackRefused as refused:  # by settings that have changed since
            metrics.callbacks.labels("given_up").inc()
            await self.store.end_callback(due, error=refused.message)
        else:
            metrics.callbacks.labels("delivered").inc()
            await self.store.end_callback(due, error=None)

    async def _put_off(self, due: DueCallback, error: str) -> None:
        log.info("callback_failed", attempts=due.attempts, error=error)
        if due.attempts > len(DELAYS):
            metrics.callbacks.labels("given_up").inc()
            await self.store.end_callback(due, error=error)
            return
        metrics.callbacks.labels("retried").inc()
        await self.store.retry_callback(due, after=DELAYS[due.attempts - 1], error=error)

    async def _post(self, due: DueCallback) -> None:
        parts = _split(self.rules.check(due.url))
        body = message(due)
        head = {
            "host": parts.netloc,
            "content-type": "application/json",
            "content-length": str(len(body)),
            "user-agent": "glossa-registry",
            "glossa-signature": self.rules.signature(body, now=time.time()),
            "connection": "close",
        }
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
        status = await self._exchange(parts, "\r\n".join([*lines, "", ""]).encode() + body)
        if not 200 <= status < 300:  # redirects too: they might lead inwards
            raise CallbackFailed(f"answered {status}")

    async def _exchange(self, parts: SplitResult, request: bytes) -> int:
        """Send a request and read the status of the answer; the rest is nobody's business."""
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        address = await self._address(str(parts.hostname), port)
        try:
            reader, writer = await asyncio.open_connection(
                address,
                port,
                ssl=ssl.create_default_context() if secure else None,
                server_hostname=parts.hostname if secure else None,
                limit=LONGEST_STATUS_LINE,
            )
            try:
                writer.write(request)
                await writer.drain()
                return status_of(await reader.readline())
            finally:
                writer.close()
        except (OSError, ValueError) as error:
            raise CallbackFailed(f"could not be reached ({type(error).__name__})") from error

    async def _address(self, host: str, port: int) -> str:
        """What a name means now. Exactly this address is called: it cannot mean another later."""
        try:
            found = await asyncio.get_running_loop().run_in_executor(
                self.resolvers, partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
            )
        except (OSError, UnicodeError) as error:
            raise CallbackFailed("has no address") from error
        addresses = [str(one[4][0]) for one in found]
        if not all(self.rules.may_call(address) for address in addresses):
            raise CallbackRefused("must not lead to a private address")
        return addresses[0]


def message(due: DueCallback) -> bytes:
    """What is told. The id stays the same from attempt to attempt, so that twice can be noticed."""
    told = {
        "event": "file.processed",
        "callback_id": str(due.callback_id),
        "file_id": str(due.file_id),
        "pdf_hash": due.content_hash,
        "total_pages": due.total_pages,
        "broken_pages": due.broken_pages,
        "processed_at": due.processed_at.isoformat(),
    }
    return json.dumps(told).encode()


def status_of(line: bytes) -> int:
    """The number in "HTTP/1.1 204 No Content"."""
    parts = line.split()
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit():
        raise CallbackFailed("did not answer in HTTP")
    return int(parts[1])


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # refuses ports that are none
    except ValueError:
        raise CallbackRefused("is malformed") from None
    return parts


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
