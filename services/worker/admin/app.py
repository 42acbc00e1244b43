"""The application on the Worker's HTTP port: /metrics for Prometheus, /admin/ for people."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import structlog
from prometheus_client import make_asgi_app
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.runtime.errors import GlossaError
from services.worker.admin.render import STATIC, page

log = structlog.get_logger()

PREFIX = "/admin"
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
STATUSES = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "FAILED_PRECONDITION": 409,
    "ALREADY_EXISTS": 409,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    # Not "no-referrer": browsers would send our own forms with the origin "null".
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def make_app(routes: Sequence[Route], *, origin: str, host: str) -> ASGIApp:
    """Prometheus may scrape under any name; the pages answer to their own alone."""
    handlers: dict[Any, Any] = {
        GlossaError: _refused,
        HTTPException: _no_page,
        Exception: _broken,
    }
    pages = Starlette(
        routes=[
            Route("/", _to_metrics),
            Mount("/static", StaticFiles(directory=STATIC), name="static"),
            *routes,
        ],
        exception_handlers=handlers,
    )
    return Starlette(
        routes=[
            Mount(PREFIX, _Guard(pages, hosts=_hosts(origin, host))),
            Route("/metrics", _Metrics()),
            Route("/", _to_metrics),
        ]
    )


def public_origin(request: Request, configured: str) -> str:
    """Where browsers think that they are."""
    return configured or f"http://{request.headers.get('host', '')}"


class _Metrics:
    """What Prometheus scrapes; an object, because a route calls functions with a request."""

    def __init__(self) -> None:
        self._app = make_asgi_app()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class _Guard:
    """Puts the headers on every answer, and turns away who came by another name."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                static = scope["path"].startswith(f"{PREFIX}/static/")
                headers = HEADERS | {"cache-control": "no-cache" if static else "no-store"}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (name.encode(), value.encode())
                        for name, value in headers.items()
                        if name.encode() not in given
                    ),
                ]
            await send(message)

        if scope["type"] == "http" and _host_of(Request(scope)) not in self._hosts:
            refusal = PlainTextResponse(
                "These pages do not answer under this name; set GLOSSA_ADMIN_ORIGIN to the address"
                " they are reached at.\n",
                status_code=421,
            )
            await refusal(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)


def _hosts(origin: str, host: str) -> frozenset[str]:
    """Names that a browser may have come by; a foreign name may be an attack by its DNS."""
    named = urlsplit(origin).hostname
    return frozenset({named}) if named else LOCAL_HOSTS | {host}


def _host_of(request: Request) -> str:
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


async def _to_metrics(_: Request) -> Response:
    return RedirectResponse(f"{PREFIX}/metrics", status_code=303)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, GlossaError)
    status = STATUSES.get(error.code, 500)
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after.total_seconds())))
    return page(
        "error.html", status=status, headers=headers, reason=error.reason, message=error.message
    )


async def _no_page(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = "There is no such page." if error.status_code == 404 else str(error.detail)
    return page(
        "error.html", status=error.status_code, reason=str(error.status_code), message=message
    )


async def _broken(request: Request, error: Exception) -> Response:
    # The text of an unexpected error may hold anything: it stays in the log.
    log.error("admin_page_broke", path=request.url.path, exc_info=error)
    return page(
        "error.html", status=500, reason="INTERNAL", message="Something went wrong on our side."
    )
