"""Registries of a test's own, and what tests ask them about everything they keep."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from glossa.registry.v1 import registry_pb2 as pb
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceStub
from google.protobuf.duration_pb2 import Duration

from services.doctor.examine import find_violations
from services.registry.__main__ import compose
from services.registry.config import Config
from services.runtime.server import running
from tests.registry.client import Registry
from tests.suite import Keys

AT_ONCE = Duration(seconds=0)


def configured(databases: Mapping[str, str], keys: Keys, folder: Path, **settings: Any) -> Config:
    """Settings for a Registry over a test's database and folder."""
    defaults: dict[str, Any] = {
        "database_url": databases["registry"],
        "verify_key_file": keys.verify_key_file,
        "store_url": str(folder / "objects"),
        "spool_dir": folder / "spool",
        "pdf_children": 1,
        "drain_seconds": 0,
        "detect_at_upload": False,
    }
    return Config(**defaults | settings)


@asynccontextmanager
async def replica(
    databases: Mapping[str, str], keys: Keys, folder: Path, **settings: Any
) -> AsyncIterator[Registry]:
    """One running Registry, called by a gateway."""
    config = configured(databases, keys, folder, **settings)
    async with (
        running("registry", config, compose) as here,
        grpc.aio.insecure_channel(here.address) as channel,
    ):
        served = Registry(stub=RegistryServiceStub(channel), keys=keys, config=config)
        yield served.as_service("gateway")


async def until_none(registry: Registry, sql: str) -> None:
    """Wait until a query finds nothing any more; another process decides when."""
    while await registry.rows(sql):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def collect(registry: Registry, **request: Any) -> pb.CollectGarbageResponse:
    """Collect garbage now, without a grace time unless told."""
    request.setdefault("grace", AT_ONCE)
    admin = registry.as_service("admin")
    answer: pb.CollectGarbageResponse = await admin.call(
        "CollectGarbage", pb.CollectGarbageRequest(**request)
    )
    return answer


async def check_health(registry: Registry, **request: Any) -> pb.CheckReferenceHealthResponse:
    """Everything that is wrong, bytes included."""
    admin = registry.as_service("admin")
    request.setdefault("check_bytes", True)
    answer: pb.CheckReferenceHealthResponse = await admin.call(
        "CheckReferenceHealth", pb.CheckReferenceHealthRequest(**request)
    )
    return answer


def kept_hashes(registry: Registry) -> set[str]:
    """The hashes the object store has bytes for; anything else in it is a mistake."""
    folder = Path(registry.config.store_url)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert all(path.suffix == ".pdf" and len(path.stem) == 64 for path in files), files
    return {path.stem for path in files}


async def broken_invariants(registry: Registry) -> list[str]:
    """Promises that are not kept, asked past the service."""
    url = registry.config.database_url.get_secret_value()
    return list(await find_violations(url, only={"registry"}))
