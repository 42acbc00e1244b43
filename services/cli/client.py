"""The suite as the command line sees it: typed calls, one channel to each service."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path

import grpc
from glossa.cache.v1 import cache_pb2
from glossa.cache.v1.cache_pb2_grpc import CacheServiceStub
from glossa.quota.v1 import quota_pb2
from glossa.quota.v1.quota_pb2_grpc import QuotaServiceStub
from glossa.registry.v1 import registry_pb2
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceStub
from glossa.worker.v1 import worker_pb2
from glossa.worker.v1.worker_pb2_grpc import WorkerServiceStub

from services.cli.errors import CommandFailed, asking
from services.cli.tokens import MintedToken
from services.local.layout import state_dir_from, suite_addresses
from services.local.state import State
from services.runtime.channel import open_channel
from services.runtime.errors import RelayedError
from services.runtime.tls import tls_in

CHUNK_BYTES = 1 << 20
CALL_SECONDS = 15.0
UPLOAD_SECONDS = 600.0
WATCH_SECONDS = 3600.0
# How often in vain, and how long apart: together longer than a restart takes.
RESUMES = 10
RESUME_SECONDS = 0.5

Target = dict[str, str]


class SuiteClient:
    """Calls on behalf of users, as a gateway does."""

    def __init__(self, channels: dict[str, grpc.aio.Channel], addresses: dict[str, str]) -> None:
        self._addresses = addresses
        self._registry = RegistryServiceStub(channels["registry"])
        self._cache = CacheServiceStub(channels["cache"])
        self._quota = QuotaServiceStub(channels["quota"])
        self._worker = WorkerServiceStub(channels["worker"])

    async def upload(
        self, user: str, filename: str, content: AsyncIterator[bytes]
    ) -> registry_pb2.UploadDocumentResponse:
        async def parts() -> AsyncIterator[registry_pb2.UploadDocumentRequest]:
            owner = registry_pb2.Owner(user_id=user)
            header = registry_pb2.UploadDocumentRequest.Header(owner=owner, filename=filename)
            yield registry_pb2.UploadDocumentRequest(header=header)
            try:
                async for chunk in content:
                    yield registry_pb2.UploadDocumentRequest(chunk=chunk)
            except OSError as error:
                unreadable.append(error)
                raise

        unreadable: list[OSError] = []
        try:
            with self._asking("registry"):
                return await self._registry.UploadDocument(parts(), timeout=UPLOAD_SECONDS)
        except asyncio.CancelledError:
            # All that gRPC tells of a request that could not be read to its end.
            if unreadable:
                raise CommandFailed(
                    f"cannot read {filename} to its end: {unreadable[0].strerror}"
                ) from unreadable[0]
            raise
        except RelayedError as error:
            if error.is_ours:
                raise
            # The refusal of an upload that goes on for long is lost with its connection.
            raise CommandFailed(
                "the Registry cut the upload off", next_step="is it a PDF, and not too large?"
            ) from error

    async def explain(
        self, user: str, target: Target, *, page: int, locale: str
    ) -> cache_pb2.ExplainPageResponse:
        request = cache_pb2.ExplainPageRequest(
            user_id=user, page=page, locale=locale, request_id=str(uuid.uuid4())
        )
        for field, value in target.items():
            setattr(request, field, value)
        with self._asking("cache"):
            return await self._cache.ExplainPage(request)

    async def convert(self, user: str, target: Target) -> cache_pb2.ConvertDocumentResponse:
        request = cache_pb2.ConvertDocumentRequest(user_id=user, request_id=str(uuid.uuid4()))
        for field, value in target.items():
            setattr(request, field, value)
        with self._asking("cache"):
            return await self._cache.ConvertDocument(request)

    async def generation(self, user: str, generation_id: str) -> cache_pb2.Generation:
        request = cache_pb2.GetGenerationRequest(user_id=user, generation_id=generation_id)
        with self._asking("cache"):
            return (await self._cache.GetGeneration(request)).generation

    async def watch(
        self, user: str, generation_id: str
    ) -> AsyncIterator[worker_pb2.WatchGenerationResponse]:
        """Every change until the end; a broken connection is resumed where it broke."""
        request = worker_pb2.WatchGenerationRequest(generation_id=generation_id, user_id=user)
        resumes_left = RESUMES
        while True:
            try:
                async for event in self._worker.WatchGeneration(request, timeout=WATCH_SECONDS):
                    resumes_left = RESUMES
                    request.after_sequence, request.resume = event.sequence, True
                    if not event.heartbeat:
                        yield event
            except grpc.aio.AioRpcError as error:
                broke = error.code() is grpc.StatusCode.UNAVAILABLE and request.resume
                if not broke or not resumes_left:
                    with self._asking("worker"):
                        raise
                resumes_left -= 1
                await asyncio.sleep(RESUME_SECONDS)
            else:
                return

    async def request(self, user: str, request_id: str) -> cache_pb2.DescribeRequestResponse:
        request = cache_pb2.DescribeRequestRequest(user_id=user, request_id=request_id)
        with self._asking("cache"):
            return await self._cache.DescribeRequest(request)

    async def quota(self, user: str) -> quota_pb2.GetQuotaStatusResponse:
        request = quota_pb2.GetQuotaStatusRequest(user_id=user)
        with self._asking("quota"):
            return await self._quota.GetQuotaStatus(request)

    async def ledger(
        self, user: str, *, page_size: int, page_token: str
    ) -> quota_pb2.ListLedgerResponse:
        request = quota_pb2.ListLedgerRequest(
            user_id=user, page_size=page_size, page_token=page_token
        )
        with self._asking("quota"):
            return await self._quota.ListLedger(request)

    async def costs(self, user: str, since: datetime | None) -> quota_pb2.GetUserCostsResponse:
        """Of one user, or of everybody when none is named; of this month unless told."""
        request = quota_pb2.GetUserCostsRequest(user_id=user)
        if since is not None:
            request.begins_at.FromDatetime(since)
        with self._asking("quota"):
            return await self._quota.GetUserCosts(request)

    def _asking(self, service: str) -> AbstractContextManager[None]:
        return asking(service, self._addresses[service])


@asynccontextmanager
async def connected(
    *, state: State | None = None, addresses: dict[str, str] | None = None
) -> AsyncIterator[SuiteClient]:
    """A client of the suite over the state folder, or of the one that is named."""
    token = MintedToken((state or State(state_dir_from(os.environ))).signer())
    addresses, tls = addresses or suite_addresses(), tls_in(os.environ)
    async with AsyncExitStack() as stack:
        channels = {
            service: await stack.enter_async_context(
                open_channel(address, token, tls=tls, deadline_seconds=CALL_SECONDS)
            )
            for service, address in addresses.items()
        }
        yield SuiteClient(channels, addresses)


async def chunks_of(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
