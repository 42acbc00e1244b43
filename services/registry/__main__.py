"""Composition root of the Registry."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from glossa.registry.v1.registry_pb2_grpc import add_RegistryServiceServicer_to_server

from services.registry.config import Config
from services.registry.handler import RegistryHandler
from services.registry.objects import open_objects
from services.registry.page_store import PageStore
from services.registry.pages import Pages
from services.registry.revocation_store import RevocationStore
from services.registry.revocations import Revocations
from services.registry.sandbox import open_sandbox
from services.registry.store import RegistryStore
from services.registry.upload import Upload
from services.runtime.database import open_database
from services.runtime.server import Parts, Servicer, run


@asynccontextmanager
async def compose(config: Config) -> AsyncIterator[Parts]:
    config.spool_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with (
        open_database(
            config.database_url.get_secret_value(),
            application_name="registry",
            pool_size=config.database_pool_size,
        ) as database,
        open_objects(config.store_url, spool_dir=config.spool_dir) as objects,
        open_sandbox(config.sandbox_limits()) as sandbox,
    ):
        store = RegistryStore(database)
        revocations = Revocations(RevocationStore(database))
        upload = Upload(
            store=store,
            objects=objects,
            sandbox=sandbox,
            spool_dir=config.spool_dir,
            max_upload_bytes=config.max_upload_bytes,
        )
        handler = RegistryHandler(
            store=store,
            upload=upload,
            pages=Pages(store=PageStore(database), objects=objects, sandbox=sandbox),
            revocations=revocations,
            idle_seconds=config.upload_idle_seconds,
        )
        servicer = Servicer(
            name="glossa.registry.v1.RegistryService",
            handler=handler,
            add=add_RegistryServiceServicer_to_server,
        )
        async with revocations.running():
            yield Parts(servicers=[servicer], on_drain=revocations.drain)


if __name__ == "__main__":
    run("registry", Config, compose)
