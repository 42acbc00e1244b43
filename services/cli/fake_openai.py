"""`glossa fake-openai`: the loopback model server by hand, honest or failing as told."""

import asyncio
from dataclasses import dataclass, replace

from services.cli.errors import CommandFailed
from services.local.fake_answers import FAILURES, Answer, Question, lifelike
from services.local.fake_openai import FakeOpenAI, fake_openai


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How the server behaves."""

    fail: str = ""
    # Only so many first calls fail; 0: all of them.
    times: int = 0
    # Only every so-many-th call fails.
    every: int = 1
    retry_after: str = ""
    delay_seconds: float = 0.0


async def run_fake_openai(port: int, manner: Manner) -> None:
    """Serves until Ctrl-C: the address and how to use it first, then a line for each call."""
    if manner.fail and manner.fail not in FAILURES:
        raise CommandFailed(f"no such failure: choose one of {', '.join(FAILURES)}")
    try:
        async with fake_openai(port) as server:
            server.answer = Behaviour(server, manner)
            server.before = lambda _: asyncio.sleep(manner.delay_seconds)
            print(server.url, flush=True)
            print(f"use it: OPENAI_BASE_URL={server.url} OPENAI_API_KEY=any make run", flush=True)
            print(f"what it counted: {server.url.removesuffix('/v1')}/count", flush=True)
            await asyncio.Event().wait()
    except OSError as error:
        raise CommandFailed(f"port {port} cannot be used: {error.strerror}") from error


class Behaviour:
    """Answers a question in its manner, and prints what it did."""

    def __init__(self, server: FakeOpenAI, manner: Manner) -> None:
        self._server = server
        self._manner = manner
        self._failed = 0

    def __call__(self, question: Question) -> Answer:
        call, manner = self._server.calls, self._manner
        more = not manner.times or self._failed < manner.times
        if not (manner.fail and more and call % manner.every == 0):
            print(f"call {call}: {question.about or 'question'} answered", flush=True)
            return lifelike(question)
        self._failed += 1
        print(f"call {call}: {question.about or 'question'} {manner.fail}", flush=True)
        answer = FAILURES[manner.fail]()
        if manner.retry_after:
            headers = {**answer.headers, "retry-after": manner.retry_after}
            return replace(answer, headers=headers)
        return answer
