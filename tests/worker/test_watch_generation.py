"""WatchGeneration through the whole suite: order, resumption, access, ends, and no leaks."""

from glossa.cache.v1 import cache_pb2
from glossa.worker.v1 import worker_pb2

from tests.suite import Suite, lecture


async def test_smoke(suite: Suite) -> None:
    up = await suite.upload("ada", lecture("Virtual memory is an abstraction. A page fault is an event."))
    answer = await suite.explain("ada", up.document.pdf_hash)
    print(answer)
    async for u in suite.worker.WatchGeneration(
        worker_pb2.WatchGenerationRequest(generation_id=answer.generation_id, user_id="ada"), metadata=suite.bearer(), timeout=30):
        print(u)
