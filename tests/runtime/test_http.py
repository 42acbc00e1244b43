"""Pages in a thread of their own, and what they run in the loop of the service."""

import asyncio
import threading
from contextvars import ContextVar

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from services.runtime.http import HomeLoop, http_port

colour: ContextVar[str] = ContextVar("colour", default="none")


async def test_what_belongs_to_the_service_runs_in_its_loop_and_knows_the_request() -> None:
    home, here = HomeLoop(), threading.get_ident()

    async def look() -> tuple[int, str]:
        return threading.get_ident(), colour.get()

    async def page(request: Request) -> Response:
        colour.set(request.query_params["colour"])
        there, known = await home.run(look())
        return PlainTextResponse(f"{there == here} {threading.get_ident() == here} {known}")

    async with (
        http_port("127.0.0.1", 0, Starlette(routes=[Route("/", page)])) as port,
        httpx2.AsyncClient(timeout=60, trust_env=False) as client,
    ):
        answers = await asyncio.gather(
            *(client.get(f"http://127.0.0.1:{port}/?colour={one}") for one in ("red", "blue"))
        )

    assert [answer.text for answer in answers] == ["True False red", "True False blue"]


async def test_a_page_that_waits_for_the_loop_is_finished_before_the_port_closes() -> None:
    home, asked, done = HomeLoop(), asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        asked.set()
        await done.wait()

    async def page(_: Request) -> Response:
        await home.run(wait())
        return PlainTextResponse("finished")

    async with httpx2.AsyncClient(timeout=60, trust_env=False) as client:
        async with http_port("127.0.0.1", 0, Starlette(routes=[Route("/", page)])) as port:
            asking = asyncio.create_task(client.get(f"http://127.0.0.1:{port}/"))
            await asked.wait()
            # Runs when the loop runs again, which is while the port is being closed.
            asyncio.get_running_loop().call_soon(done.set)
        answer = await asking

    assert answer.text == "finished"


async def test_a_taken_port_is_an_error_at_once() -> None:
    app = Starlette()
    async with http_port("127.0.0.1", 0, app) as port:
        with pytest.raises(OSError, match="in use"):
            async with http_port("127.0.0.1", port, app):
                pass
