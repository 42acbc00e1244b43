"""A running Registry over a real database; tests share it, each with owners and PDFs of its own."""

from collections.abc import AsyncIterator
from itertools import count

import asyncpg
import grpc
import pytest
from glossa.registry.v1 import registry_pb2 as pb
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceStub

from services.local.bootstrap import service_url
from services.registry.__main__ import compose
from services.registry.config import Config
from services.runtime.server import running
from tests.conftest import PASSWORDS, TEMPLATE
from tests.registry.client import Registry
from tests.suite import Keys

_numbers = count(1)


@pytest.fixture
def someone() -> pb.Owner:
    """A user no other test knows."""
    return pb.Owner(user_id=f"user-{next(_numbers)}")


@pytest.fixture
def another() -> pb.Owner:
    """Another user no other test knows."""
    return pb.Owner(user_id=f"user-{next(_numbers)}")


@pytest.fixture(scope="session")
async def shared_database(template: str) -> str:
    """One migrated database for all tests of the Registry, as its own role sees it."""
    connection = await asyncpg.connect(template)
    try:
        await connection.execute(f"CREATE DATABASE registry_tests TEMPLATE {TEMPLATE}")
    finally:
        await connection.close()
    admin_url = template.rpartition("/")[0] + "/registry_tests"
    return service_url(admin_url, "registry", PASSWORDS["registry"])


@pytest.fixture(scope="session")
async def served(
    shared_database: str, keys: Keys, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Registry]:
    """The Registry, called by nobody in particular."""
    folder = tmp_path_factory.mktemp("registry")
    config = Config(
        database_url=shared_database,
        verify_key_file=keys.verify_key_file,
        store_url=str(folder / "objects"),
        spool_dir=folder / "spool",
        max_upload_bytes=3_000_000,
        upload_idle_seconds=1.0,
        pdf_children=1,
        pdf_cpu_seconds=1,
        detect_at_upload=False,
        drain_seconds=0,
    )
    async with (
        running("registry", config, compose) as here,
        grpc.aio.insecure_channel(here.address) as channel,
    ):
        yield Registry(stub=RegistryServiceStub(channel), keys=keys, config=config)


@pytest.fixture
def registry(served: Registry) -> Registry:
    """The Registry as a gateway calls it."""
    return served.as_service("gateway")
