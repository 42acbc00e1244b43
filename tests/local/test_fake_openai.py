"""The loopback model server: it keeps little, and bills only what can be counted."""

import asyncio

import pytest

from services.local.fake_openai import REQUESTS_KEPT
from tests import fake_openai as fake
from tests.fake_openai import Count, Question


async def test_only_the_last_requests_are_kept_and_all_are_counted() -> None:
    async with fake.fake_openai() as server:
        for number in range(REQUESTS_KEPT + 5):
            await server._answer_to(Question(body={"number": number}))

    assert server.calls == REQUESTS_KEPT + 5
    assert [one["number"] for one in server.requests] == list(range(5, REQUESTS_KEPT + 5))


@pytest.mark.parametrize("usage", ["free", {}, {"input_tokens": "many", "output_tokens": None}])
async def test_a_usage_that_is_no_number_bills_nothing_and_the_connection_lives(
    usage: object,
) -> None:
    counted, answer = Count(), fake.ok(fake.response("[]", usage=usage))
    counted.bill(answer)
    assert counted == Count()

    async with fake.fake_openai() as server:
        server.always(answer)
        host, _, port = server.url.removeprefix("http://").removesuffix("/v1").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in range(2):
            writer.write(b"POST /v1/responses HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}")
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
        writer.close()
