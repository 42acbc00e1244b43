"""Composition root of the Registry."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

from glossa.registry.v1.registry_pb2_grpc import add_RegistryServiceServicer_to_server

from services.registry.backfill import Backfill
from services.registry.backfill_store import BackfillStore
from services.registry.callback_store import CallbackStore
from services.registry.callbacks import Callbacks
from services.registry.clients import CacheClient
from services.registry.collect import CollectGarbage, TellCollected
from services.registry.config import Config
from services.registry.files import Files
from services.registry.garbage_store import GarbageStore
from services.registry.handler import RegistryHandler
from services.registry.health import CheckHealth
from services.registry.health_store import HealthStore
from services.registry.memory import keep_freed_memory
from services.registry.objects import Objects, open_objects
from services.registry.page_store import PageStore
from services.registry.pages import Pages
from services.registry.process import Processing
from services.registry.process_store import ProcessStore
from services.registry.reference_store import ReferenceStore
from services.registry.revocation_store import RevocationStore
from services.registry.revocations import Revocations
from services.registry.sandbox import PdfSandbox, open_sandbox
from services.registry.store import RegistryStore
from services.registry.upload import Upload
from services.runtime.auth import TokenFile
from services.runtime.channel import open_channel
from services.runtime.database import Database, open_database
from services.runtime.periodic import Periodic, periodic
from services.runtime.server import CannotStart, Parts, Servicer, run
from services.runtime.tls import tls_of

DUTIES_EVERY = timedelta(seconds=1)


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
        AsyncExitStack() as duties,
    ):
        revocations = Revocations(RevocationStore(database))
        await duties.enter_async_context(revocations.running())
        pages = Pages(store=PageStore(database), objects=objects, sandbox=sandbox)
        garbage = CollectGarbage(
            store=GarbageStore(database),
            objects=objects,
            grace=timedelta(seconds=config.garbage_grace_seconds),
        )
        processing = await _start_duties(config, database, pages, garbage, duties)
        upload = _upload(config, database, objects, sandbox, processing)
        backfill = Backfill(store=BackfillStore(database), objects=objects, upload=upload)
        handler = RegistryHandler(
            upload=upload,
            files=Files(store=upload.store, objects=objects, backfill=backfill),
            references=ReferenceStore(database),
            pages=pages,
            backfill=backfill,
            garbage=garbage,
            health=CheckHealth(store=HealthStore(database), objects=objects),
            revocations=revocations,
            callback_rules=config.callback_rules(),
            idle_seconds=config.upload_idle_seconds,
        )
        servicer = Servicer(
            name="glossa.registry.v1.RegistryService",
            handler=handler,
            add=add_RegistryServiceServicer_to_server,
        )
        yield Parts(servicers=[servicer], on_drain=revocations.drain)


def _upload(
    config: Config, database: Database, objects: Objects, sandbox: PdfSandbox, processing: Periodic
) -> Upload:
    return Upload(
        store=RegistryStore(database),
        objects=objects,
        sandbox=sandbox,
        spool_dir=config.spool_dir,
        max_upload_bytes=config.max_upload_bytes,
        processed_later=config.detect_at_upload,
        wake_processing=processing.wake,
    )


async def _start_duties(
    config: Config,
    database: Database,
    pages: Pages,
    garbage: CollectGarbage,
    duties: AsyncExitStack,
) -> Periodic:
    """What the Registry does by itself; answers with the duty that uploads wake."""
    start = duties.enter_async_context
    callbacks = Callbacks(store=CallbackStore(database), rules=config.callback_rules())
    calling = await start(periodic("callbacks", every=DUTIES_EVERY, run_once=callbacks.run_once))
    every = timedelta(seconds=config.garbage_every_seconds)
    await start(periodic("collect_garbage", every=every, run_once=garbage.run_once))
    if config.cache_address:
        if config.token_file is None:
            raise CannotStart("GLOSSA_TOKEN_FILE must name the file with this service's own token")
        token = TokenFile(config.token_file)
        channel = await start(open_channel(config.cache_address, token, tls=tls_of(config)))
        tell = TellCollected(store=garbage.store, cache=CacheClient(channel))
        await start(periodic("tell_collected", every=DUTIES_EVERY, run_once=tell.run_once))
    processing = Processing(store=ProcessStore(database), pages=pages, on_processed=calling.wake)
    return await start(
        periodic("process_documents", every=DUTIES_EVERY, run_once=processing.run_once)
    )


if __name__ == "__main__":
    keep_freed_memory()
    run("registry", Config, compose)
