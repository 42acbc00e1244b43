"""Signing in and out, and the door that every other page is behind."""

import re
from collections.abc import Awaitable, Callable

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from services.runtime.errors import Forbidden, GlossaError, Unauthenticated
from services.worker.admin.app import PREFIX, STATUSES, public_origin
from services.worker.admin.clients import acting_for
from services.worker.admin.forms import Form, read_form
from services.worker.admin.render import page
from services.worker.admin.session import (
    SESSION_COOKIE,
    VISIT_COOKIE,
    Session,
    SignIn,
    check_form,
    form_token,
    new_visit,
)

log = structlog.get_logger()

HOME = f"{PREFIX}/metrics"
# Only our own pages, by their path.
_OWN_PATH = re.compile(r"/admin/[\w/.-]*(\?[\w=&%.+-]*)?", re.ASCII)


class NotSignedIn(Unauthenticated):
    """Nobody has tried yet, so nothing went wrong."""


Behind = Callable[[Request, Session], Awaitable[Response]]


class Doors:
    """Who comes in."""

    def __init__(self, sign_in: SignIn, *, origin: str) -> None:
        self._sign_in = sign_in
        self._origin = origin

    def routes(self) -> list[Route]:
        return [
            Route("/sign-in", self.show, methods=["GET"]),
            Route("/sign-in", self.enter, methods=["POST"]),
            Route("/sign-out", self.leave, methods=["POST"]),
        ]

    def behind(self, endpoint: Behind) -> Callable[[Request], Awaitable[Response]]:
        """A page for admins: whoever is not signed in sees the door instead."""

        async def guarded(request: Request) -> Response:
            try:
                session = self._session(request)
            except Unauthenticated as error:
                return self._door(request, error)
            with acting_for(session.token):
                return await endpoint(request, session)

        return guarded

    async def form(self, request: Request, session: Session) -> Form:
        """What was sent, if this session's own page sent it."""
        form = await read_form(request, origin=public_origin(request, self._origin))
        check_form(form, session.token)
        return form

    async def show(self, request: Request) -> Response:
        return self._door(request, None)

    async def enter(self, request: Request) -> Response:
        form = await read_form(request, origin=public_origin(request, self._origin))
        check_form(form, request.cookies.get(VISIT_COOKIE, ""))
        address = request.client.host if request.client else ""
        try:
            session = self._sign_in.try_token(form.get("token", "").strip(), address=address)
        except GlossaError as error:
            log.warning("admin_refused", reason=error.reason)
            return self._door(request, error, then=form.get("then", ""))
        log.info("admin_signed_in", email=session.email)
        response = RedirectResponse(_own(form.get("then", "")), status_code=303)
        self._set_cookie(response, SESSION_COOKIE, session.token, session.seconds_left)
        return response

    async def leave(self, request: Request) -> Response:
        try:
            session = self._session(request)
        except (Unauthenticated, Forbidden):
            session = None
        if session is not None:
            await self.form(request, session)
        response = RedirectResponse(f"{PREFIX}/sign-in", status_code=303)
        response.delete_cookie(SESSION_COOKIE, path=PREFIX)
        return response

    def _session(self, request: Request) -> Session:
        token = request.cookies.get(SESSION_COOKIE, "")
        if not token:
            raise NotSignedIn("nobody is signed in")
        return self._sign_in.session(token)

    def _door(
        self, request: Request, error: GlossaError | None, *, then: str | None = None
    ) -> Response:
        visit = request.cookies.get(VISIT_COOKIE) or new_visit()
        query = f"?{request.url.query}" if request.url.query else ""
        here = request.url.path + query if request.method == "GET" else ""
        at_door = request.url.path == f"{PREFIX}/sign-in"
        wait = error.retry_after if error else None
        headers = {"retry-after": str(max(1, round(wait.total_seconds())))} if wait else {}
        if "hx-request" in request.headers:
            headers["hx-refresh"] = "true"  # the whole page is to become the door
        response = page(
            "sign_in.html",
            status=STATUSES[error.code] if error else 200,
            headers=headers,
            form_token=form_token(visit),
            then=_own(then if then is not None else "" if at_door else here),
            problem="" if error is None or isinstance(error, NotSignedIn) else error.message,
            is_open=self._sign_in.is_open,
        )
        self._set_cookie(response, VISIT_COOKIE, visit, None)
        return response

    def _set_cookie(self, response: Response, name: str, value: str, seconds: int | None) -> None:
        response.set_cookie(
            name,
            value,
            max_age=seconds,
            path=PREFIX,
            httponly=True,
            samesite="strict",
            secure=self._origin.startswith("https://"),
        )


def _own(path: str) -> str:
    """Where to go next; nowhere but to our own pages."""
    return path if _OWN_PATH.fullmatch(path) else HOME
