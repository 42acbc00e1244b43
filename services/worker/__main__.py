"""Composition root of the Worker."""

import asyncio
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import grpc
from glossa.worker.v1.worker_pb2_grpc import add_WorkerServiceServicer_to_server

from services.runtime.auth import TokenFile
from services.runtime.channel import open_channel
from services.runtime.database import Database, open_database
from services.runtime.server import CannotStart, Parts, Servicer, run, starting
from services.runtime.settings import CONVERSION_VERSION
from services.runtime.tls import tls_of
from services.worker.attempt import Attempts
from services.worker.chunk_store import ChunkStore
from services.worker.clients import Cache, Jobs, Quota, Registry
from services.worker.config import Config
from services.worker.convert import Conversion
from services.worker.dead_letter_store import DeadLetterStore
from services.worker.dead_letters import DeadLetters
from services.worker.delivery import Delivery
from services.worker.forget import forgetting
from services.worker.handler import WorkerHandler, render_update
from services.worker.image_analysis import ImageAnalysis
from services.worker.image_store import ImageStore
from services.worker.lease_loop import LeaseLoop
from services.worker.metrics_store import MetricsStore
from services.worker.model import Explainer
from services.worker.model_calls import ModelCalls
from services.worker.offline import OfflineExplainer
from services.worker.once import parse_arguments, run_once
from services.worker.operations import Operations
from services.worker.pipeline import Pipeline
from services.worker.sample_store import SampleStore
from services.worker.store import EventStore
from services.worker.throttle import Pace, Throttle
from services.worker.upkeep import Upkeep
from services.worker.watch import Watches


@asynccontextmanager
async def compose(config: Config) -> AsyncIterator[Parts]:
    async with open_worker(config) as (loop, base):
        watches = Watches(
            events=base.events,
            cache=Cache(base.cache_channel),
            render=render_update,
            heartbeat=config.heartbeat,
        )
        samples, metrics = SampleStore(base.database), MetricsStore(base.database)
        letters = DeadLetters(
            store=DeadLetterStore(base.database),
            jobs=base.jobs,
            quota=base.quota,
            kept=config.dead_letters_kept,
        )
        upkeep = Upkeep(
            database=base.database,
            events=base.events,
            samples=samples,
            metrics=metrics,
            letters=letters,
            events_kept=config.events_kept,
            collect_every=config.collect_every,
        )

        async def drain() -> None:
            # Attempts first: their watchers may still see them finish.
            await loop.drain(config.attempt_grace)
            watches.drain()

        handler = WorkerHandler(
            watches=watches,
            letters=letters,
            samples=samples,
            metrics=metrics,
            slow_reader=config.slow_reader,
        )
        servicer = Servicer(
            name="glossa.worker.v1.WorkerService",
            handler=handler,
            add=add_WorkerServiceServicer_to_server,
        )
        async with (
            watches.running(),
            upkeep.running(),
            loop.working(),
            _pages(config, letters) as pages,
        ):
            yield Parts(servicers=[servicer], on_drain=drain, pages=pages)


@asynccontextmanager
async def _pages(config: Config, letters: DeadLetters) -> AsyncIterator[Any]:
    """The admin pages, where there is a role to read with; /metrics alone otherwise."""
    if not config.dashboard_database_url.get_secret_value():
        yield None
        return
    # Imported here: a worker that runs once, or without pages, has no use for it.
    from services.worker.admin.compose import open_pages  # noqa: PLC0415

    async with open_pages(config, letters) as pages:
        yield pages


@dataclass(frozen=True, kw_only=True)
class Base:
    """What taking jobs and telling about them have in common."""

    database: Database
    events: EventStore
    jobs: Jobs
    quota: Quota
    cache_channel: grpc.aio.Channel


@asynccontextmanager
async def open_worker(config: Config) -> AsyncIterator[tuple[LeaseLoop, Base]]:
    """What takes jobs, and what it is made of; no job is taken yet."""
    if config.token_file is None:
        raise CannotStart("GLOSSA_TOKEN_FILE must name the file with this service's token")
    settings = config.explanation
    token, tls = TokenFile(config.token_file), tls_of(config)
    async with (
        open_database(
            config.database_url.get_secret_value(),
            application_name="worker",
            pool_size=config.database_pool_size,
        ) as database,
        open_channel(config.registry_address, token, tls=tls) as registry_channel,
        open_channel(config.cache_address, token, tls=tls) as cache_channel,
        open_channel(config.quota_address, token, tls=tls) as quota_channel,
        open_explainer(config) as explainer,
    ):
        events, quota = EventStore(database), Quota(quota_channel)
        chunks = ChunkStore(database)
        images = ImageStore(
            database, prompt_version=settings.prompt_version, model=settings.model_name
        )
        jobs = Jobs(cache_channel, config.worker_id or f"worker-{secrets.token_hex(4)}")
        operations = Operations(quota.record_operations)
        pace = Pace(most=config.model_concurrency, quota_pause=config.model_quota_pause)
        calls = ModelCalls(
            explainer=explainer,
            throttle=Throttle(pace, longest_wait=config.model_hold),
            operations=operations,
        )
        registry, analysis = Registry(registry_channel), ImageAnalysis(calls=calls, store=images)
        pipeline = Pipeline(
            registry=registry,
            calls=calls,
            images=analysis,
            chunks=chunks,
            prompt_version=settings.prompt_version,
        )
        conversion = Conversion(
            registry=registry, calls=calls, images=analysis, version=CONVERSION_VERSION
        )
        attempts = Attempts(
            pipeline=pipeline,
            conversion=conversion,
            delivery=Delivery(jobs=jobs, events=events),
        )
        loop = LeaseLoop(
            jobs=jobs,
            attempts=attempts,
            concurrency=config.concurrency,
            renew_every=config.renew_every,
        )
        base = Base(
            database=database, events=events, jobs=jobs, quota=quota, cache_channel=cache_channel
        )
        async with operations.reporting(), events.announcing(), forgetting(chunks, images):
            yield loop, base


@asynccontextmanager
async def open_explainer(config: Config) -> AsyncIterator[Explainer]:
    """A language model when there is a key for one, the built-in explainer otherwise."""
    if not config.explanation.uses_openai:
        yield OfflineExplainer()
        return
    # Imported here: it takes as long as everything else together, and offline nobody needs it.
    from services.worker.openai_explainer import open_openai_explainer  # noqa: PLC0415

    async with open_openai_explainer(
        config.explanation,
        call_seconds=config.model_call_seconds,
        link_hosts=config.link_hosts,
    ) as explainer:
        yield explainer


async def work_once(config: Config, budget: timedelta) -> None:
    """Works within a budget; told to stop earlier, it gives back what it has not done."""
    async with open_worker(config) as (loop, _):
        working = asyncio.create_task(run_once(loop, budget))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, working.cancel)
        with suppress(asyncio.CancelledError):
            await working


def main() -> None:
    arguments = parse_arguments(sys.argv[1:])
    if not arguments.once:
        run("worker", Config, compose)
        return
    with starting("worker", Config) as config:
        config.concurrency = arguments.batch
        asyncio.run(work_once(config, arguments.budget))


if __name__ == "__main__":
    main()
