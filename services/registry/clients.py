"""The Cache as the Registry sees it; deadlines live here."""

import grpc
from glossa.cache.v1 import cache_pb2
from glossa.cache.v1.cache_pb2_grpc import CacheServiceStub

from services.runtime.channel import calling

INVALIDATE_SECONDS = 10.0
COLLECTED = "DOCUMENT_COLLECTED"


class CacheClient:
    """Takes the generations of documents that are gone out of service."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = CacheServiceStub(channel)

    async def invalidate_document(self, pdf_hash: str) -> None:
        """Repeating it changes nothing."""
        request = cache_pb2.InvalidateGenerationsRequest(pdf_hash=pdf_hash, reason=COLLECTED)
        with calling("cache"):
            await self._stub.InvalidateGenerations(request, timeout=INVALIDATE_SECONDS)
