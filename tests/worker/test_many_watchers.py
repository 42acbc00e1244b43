"""A thousand watchers of one worker, over wires that are cut again and again."""

import asyncio
import random
from collections import defaultdict
from contextlib import AsyncExitStack

import grpc
from glossa.cache.v1 import cache_pb2
from glossa.worker.v1 import worker_pb2
from glossa.worker.v1.worker_pb2_grpc import WorkerServiceStub

from tests.fake_openai import FakeOpenAI
from tests.suite import Suite, lecture
from tests.worker.conftest import StartWorker
from tests.worker.proxy import Proxy, proxied

WATCHERS, GENERATIONS, WIRES, CUTS = 1_000, 100, 10, 20
GENERATING = cache_pb2.GENERATION_STATUS_GENERATING


class Watcher:
    """Follows one generation to its end, however often its wire is cut."""

    def __init__(self, suite: Suite, channel: grpc.aio.Channel, generation_id: str) -> None:
        self._stub = WorkerServiceStub(channel)
        self._bearer = suite.bearer("admin")
        self._request = worker_pb2.WatchGenerationRequest(generation_id=generation_id)
        self.generation_id = generation_id
        self.stands = asyncio.Event()
        self.resumed = 0
        self.told: list[tuple[int, int]] = []

    async def follow(self) -> None:
        while True:
            try:
                if await self._follow_once():
                    return
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                self.resumed += 1

    async def _follow_once(self) -> bool:
        call = self._stub.WatchGeneration(self._request, metadata=self._bearer, wait_for_ready=True)
        async for message in call:
            self.stands.set()
            if message.heartbeat or (self.told and message.sequence == self.told[-1][0]):
                continue  # a sign of life, or a new place in the queue
            self.told.append((message.sequence, message.stage))
            self._request.after_sequence, self._request.resume = message.sequence, True
            if message.status != GENERATING:
                assert message.stickers
                return True
        return False


async def ask_for_pages(suite: Suite) -> list[str]:
    pages = [f"Page {number} is about entropy." for number in range(GENERATIONS)]
    pdf_hash = (await suite.upload("ada", lecture(*pages))).document.pdf_hash
    answers = [
        await suite.explain("ada", pdf_hash, page=number) for number in range(1, GENERATIONS + 1)
    ]
    return [answer.generation_id for answer in answers]


async def cut_at_random(proxies: list[Proxy], watchers: list[Watcher]) -> None:
    """Twenty cuts, each when something was told since the last."""
    dice = random.Random(6)
    for _ in range(CUTS):
        before = sum(len(watcher.told) for watcher in watchers)
        dice.choice(proxies).cut()
        while before == sum(len(watcher.told) for watcher in watchers):
            if all(watcher.told and watcher.told[-1][1] > 5 for watcher in watchers):
                break  # everything has ended
            await asyncio.sleep(0.005)


async def test_every_watcher_is_told_everything_in_order_and_once(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    model.gate.clear()
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(start_worker(concurrency=4))
        generations = await ask_for_pages(cluster)
        proxies = [await stack.enter_async_context(proxied(worker.address)) for _ in range(WIRES)]
        channels = [
            await stack.enter_async_context(
                grpc.aio.insecure_channel(
                    proxy.address,
                    options=[
                        ("grpc.initial_reconnect_backoff_ms", 50),
                        ("grpc.min_reconnect_backoff_ms", 50),
                        ("grpc.max_reconnect_backoff_ms", 100),
                    ],
                )
            )
            for proxy in proxies
        ]
        watchers = [
            Watcher(cluster, channels[number % WIRES], generations[number % GENERATIONS])
            for number in range(WATCHERS)
        ]
        following = [asyncio.create_task(watcher.follow()) for watcher in watchers]
        await asyncio.gather(*(watcher.stands.wait() for watcher in watchers))
        model.gate.set()
        await cut_at_random(proxies, watchers)
        await asyncio.gather(*following)

    assert_whole(watchers)
    assert model.calls == GENERATIONS
    # The wires were cut, and it did not go unnoticed.
    assert sum(watcher.resumed for watcher in watchers) >= WATCHERS // WIRES


def assert_whole(watchers: list[Watcher]) -> None:
    """From its snapshot on, each saw every number once and in order, and all saw the same."""
    by_generation = defaultdict[str, dict[int, set[int]]](lambda: defaultdict(set))
    for watcher in watchers:
        numbers = [number for number, _ in watcher.told]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), watcher.told
        assert watcher.told[-1][1] == cache_pb2.STAGE_READY
        for number, stage in watcher.told[1:]:
            by_generation[watcher.generation_id][number].add(stage)
    assert all(len(seen) == 1 for one in by_generation.values() for seen in one.values())
