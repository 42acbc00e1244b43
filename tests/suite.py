"""The four services in one process, and a client that speaks to them as a gateway would."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import grpc
import pymupdf
from glossa.cache.v1 import cache_pb2
from glossa.cache.v1.cache_pb2_grpc import CacheServiceStub
from glossa.cache.v1.jobs_pb2_grpc import JobServiceStub
from glossa.quota.v1.quota_pb2_grpc import QuotaServiceStub
from glossa.registry.v1 import registry_pb2
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceStub
from glossa.worker.v1.worker_pb2_grpc import WorkerServiceStub

from services.cache.__main__ import compose as compose_cache
from services.cache.config import Config as CacheConfig
from services.quota.__main__ import compose as compose_quota
from services.quota.config import Config as QuotaConfig
from services.registry.__main__ import compose as compose_registry
from services.registry.config import Config as RegistryConfig
from services.runtime.auth import Signer
from services.runtime.server import running
from services.runtime.settings import ExplanationSettings
from services.worker.__main__ import compose as compose_worker
from services.worker.config import Config as WorkerConfig

HOUR = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Where the keys are, and who may sign."""

    folder: Path
    signer: Signer

    @classmethod
    def make(cls, folder: Path, private: bytes, public: bytes) -> Self:
        keys = cls(folder=folder, signer=Signer(private))
        keys.verify_key_file.write_bytes(public)
        for service in ("registry", "cache", "worker"):
            token = keys.token(service)
            keys.token_file(service).write_text(token)
        return keys

    @property
    def verify_key_file(self) -> Path:
        return self.folder / "verify.pem"

    def token_file(self, service: str) -> Path:
        return self.folder / f"{service}.jwt"

    def token(
        self, *scopes: str, subject: str = "test", lifetime: timedelta = HOUR, email: str = ""
    ) -> str:
        return self.signer.sign(subject=subject, scopes=scopes, lifetime=lifetime, email=email)

    def user_token(self, user_id: str) -> str:
        return self.token("user", subject=user_id)


@dataclass(kw_only=True)
class Suite:
    """Addresses of running services, and calls as a gateway makes them."""

    addresses: Mapping[str, str]
    keys: Keys
    exits: AsyncExitStack
    # Settings of the Cache where it runs in this process, for tests that start another beside it.
    cache_config: CacheConfig | None = None
    # Where the worker serves metrics and pages.
    pages: str = ""
    # What is shown to, and believed of, services that speak TLS.
    credentials: grpc.ChannelCredentials | None = None
    _channels: dict[str, grpc.aio.Channel] = field(default_factory=dict)

    def channel(self, service: str) -> grpc.aio.Channel:
        if service not in self._channels:
            self._channels[service] = self._connect(self.addresses[service])
            self.exits.push_async_callback(self._channels[service].close)
        return self._channels[service]

    def _connect(self, address: str) -> grpc.aio.Channel:
        if self.credentials is None:
            return grpc.aio.insecure_channel(address)
        return grpc.aio.secure_channel(address, self.credentials)

    @property
    def registry(self) -> RegistryServiceStub:
        return RegistryServiceStub(self.channel("registry"))

    @property
    def cache(self) -> CacheServiceStub:
        return CacheServiceStub(self.channel("cache"))

    @property
    def jobs(self) -> JobServiceStub:
        return JobServiceStub(self.channel("cache"))

    @property
    def quota(self) -> QuotaServiceStub:
        return QuotaServiceStub(self.channel("quota"))

    @property
    def worker(self) -> WorkerServiceStub:
        return WorkerServiceStub(self.channel("worker"))

    def bearer(self, *scopes: str) -> grpc.aio.Metadata:
        return metadata(self.keys.token(*(scopes or ("gateway",))))

    def as_user(self, user_id: str) -> grpc.aio.Metadata:
        return metadata(self.keys.user_token(user_id))

    async def upload(
        self, user: str, content: bytes, **header: Any
    ) -> registry_pb2.UploadDocumentResponse:
        async def parts() -> AsyncIterator[registry_pb2.UploadDocumentRequest]:
            owner = registry_pb2.Owner(user_id=user)
            first = registry_pb2.UploadDocumentRequest.Header(owner=owner, **header)
            yield registry_pb2.UploadDocumentRequest(header=first)
            for start in range(0, len(content), 65536):
                yield registry_pb2.UploadDocumentRequest(chunk=content[start : start + 65536])

        return await self.registry.UploadDocument(parts(), metadata=self.bearer())

    async def explain(
        self,
        user: str,
        pdf_hash: str,
        *,
        page: int = 1,
        locale: str = "en",
        request_id: str = "",
        **options: bool,
    ) -> cache_pb2.ExplainPageResponse:
        request = cache_pb2.ExplainPageRequest(
            user_id=user,
            pdf_hash=pdf_hash,
            page=page,
            locale=locale,
            request_id=request_id,
            background=options.get("background", False),
            allow_stale=options.get("allow_stale", False),
        )
        return await self.cache.ExplainPage(request, metadata=self.bearer())

    async def generation(self, generation_id: str) -> cache_pb2.Generation:
        response = await self.cache.GetGeneration(
            cache_pb2.GetGenerationRequest(generation_id=generation_id),
            metadata=self.bearer("admin"),
        )
        return response.generation


def metadata(token: str) -> grpc.aio.Metadata:
    return grpc.aio.Metadata(("authorization", f"Bearer {token}"))


def lecture(*pages: str) -> bytes:
    """A PDF of its own: one page for each text, different from every other PDF made here."""
    document: Any = pymupdf.open()  # type: ignore[no-untyped-call]
    for text in pages:
        document.new_page().insert_textbox((72, 72, 540, 770), text, fontsize=11)
    document.set_metadata({"title": uuid4().hex})
    content: bytes = document.tobytes()
    return content


@asynccontextmanager
async def running_suite(
    databases: Mapping[str, str],
    keys: Keys,
    folder: Path,
    *,
    with_worker: bool = True,
    explanation: ExplanationSettings | None = None,
    **settings: Any,
) -> AsyncIterator[Suite]:
    """Start quota, registry, cache and (unless the test plays the worker itself) a worker."""
    explanation = explanation or ExplanationSettings()

    def common(service: str) -> dict[str, Any]:
        own_token = keys.token_file(service)
        return {
            "database_url": databases[service],
            "verify_key_file": keys.verify_key_file,
            "token_file": own_token if own_token.exists() else None,
            "drain_seconds": 1,
        }

    async with AsyncExitStack() as exits:
        start = exits.enter_async_context
        # Patient, since test machines are shared.
        patient = {"answer_within_seconds": 30, **settings.get("quota", {})}
        quota_config = QuotaConfig(**common("quota"), **patient)
        quota = await start(running("quota", quota_config, compose_quota))
        registry_config = RegistryConfig(
            **common("registry"),
            store_url=(folder / "objects").as_uri(),
            spool_dir=folder / "spool",
            **settings.get("registry", {}),
        )
        registry = await start(running("registry", registry_config, compose_registry))
        cache_config = CacheConfig(
            **common("cache"),
            registry_address=registry.address,
            quota_address=quota.address,
            explanation=explanation,
            **settings.get("cache", {}),
        )
        cache = await start(running("cache", cache_config, compose_cache))
        addresses = {
            "quota": quota.address,
            "registry": registry.address,
            "cache": cache.address,
        }
        pages = ""
        if with_worker:
            worker_config = WorkerConfig(
                **common("worker"),
                registry_address=registry.address,
                cache_address=cache.address,
                quota_address=quota.address,
                explanation=explanation,
                **settings.get("worker", {}),
            )
            worker = await start(running("worker", worker_config, compose_worker))
            addresses["worker"], pages = worker.address, worker.metrics_address
        clients = await start(AsyncExitStack())
        yield Suite(
            addresses=addresses,
            keys=keys,
            exits=clients,
            cache_config=cache_config,
            pages=pages,
        )
